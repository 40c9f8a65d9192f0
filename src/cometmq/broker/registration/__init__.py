"""The registration of the broker at the name servers."""
