"""Administration of the whole broker: settings, cleaning of the store, state of replication."""
