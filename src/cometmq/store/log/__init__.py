"""The commit log: its files, its records, and where their fields are."""
