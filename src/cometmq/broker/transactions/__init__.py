"""Transactions: half messages, their decisions, and the checks of those that are undecided."""
