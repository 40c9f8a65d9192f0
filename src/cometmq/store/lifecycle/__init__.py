"""A store's life: opening and recovery, syncs and checkpoints, deletion and truncation."""
