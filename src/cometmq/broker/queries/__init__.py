"""Queries for stored messages: by key, by physical offset, and by entries of a queue."""
