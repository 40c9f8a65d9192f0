"""Messages: found by id, by key or by queue offset, and shown with their properties and body."""

from cometmq.console.messages.page import PAGES

__all__ = ["PAGES"]
