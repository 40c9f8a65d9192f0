"""Pull consumers: the fetcher, readers and their positions, and seeking."""
