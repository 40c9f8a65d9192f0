"""What only pop consumers have."""
