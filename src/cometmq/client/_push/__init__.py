"""What only push consumers have."""
