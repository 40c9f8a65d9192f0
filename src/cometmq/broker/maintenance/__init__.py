"""The store inside the broker: flush jobs, deletion of expired files, figures of replication."""
