"""Producer sessions: repeated attempts of one task store each message once."""
