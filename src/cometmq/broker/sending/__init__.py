"""Sends: validation, storing, flow control, group commit, send-backs and replies."""
