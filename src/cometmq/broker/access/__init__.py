"""Access control of a broker: accounts in files, or users and policies."""
