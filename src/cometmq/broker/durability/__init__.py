"""Decides when a stored record is acknowledged: after the disk, slaves, both or neither."""
