"""Who may use the console: users, sessions, sign-in, and the log of what happened."""
