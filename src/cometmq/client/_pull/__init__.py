"""What only pull consumers have."""
