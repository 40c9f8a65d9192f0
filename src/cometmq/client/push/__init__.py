"""The consumer that calls a handler with each message, and its parts."""
