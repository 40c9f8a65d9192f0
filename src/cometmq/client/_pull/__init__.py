"""Pull consumers: readers, their positions, and seeking."""
