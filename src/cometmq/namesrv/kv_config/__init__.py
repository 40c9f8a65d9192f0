"""The key-value table."""
