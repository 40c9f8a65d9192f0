"""Transactions: half messages, their decisions, and the checks of undecided ones."""
