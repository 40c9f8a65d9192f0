"""Access control of servers: which account sends a request, and what that account may do."""
