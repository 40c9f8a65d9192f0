"""Replication: a master sends its log to slaves, which copy its tables, too."""
