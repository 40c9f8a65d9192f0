"""Filters: which messages of a topic a group gets, by tags or by SQL92 expressions."""
