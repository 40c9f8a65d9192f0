"""Routes of topics, and brokers by cluster."""
