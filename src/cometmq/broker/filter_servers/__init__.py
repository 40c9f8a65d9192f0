"""Class filters: the filter servers of this broker, which clients find in routes."""
