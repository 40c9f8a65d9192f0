"""Plain access control of a broker."""
