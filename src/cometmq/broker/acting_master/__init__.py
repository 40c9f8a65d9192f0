"""A slave that acts as the master while there is none."""
