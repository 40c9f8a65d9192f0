"""Examines servers and their hosts, and reports what was met, what is expected and what to do."""
