"""What the response to a stored record waits for: the disk, slaves, both or neither."""
