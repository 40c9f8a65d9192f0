"""The path of a message from the producer to a broker."""
