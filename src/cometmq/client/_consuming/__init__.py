"""What push, pull and pop consumers share."""
