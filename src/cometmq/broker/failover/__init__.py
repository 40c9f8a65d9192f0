"""Failover: a controller elects the master, and replicas follow by epochs."""
