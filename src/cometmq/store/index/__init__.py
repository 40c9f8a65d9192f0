"""The index: from keys to records of the log, and searches by key."""
