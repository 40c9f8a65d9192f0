"""Lists of topics, and changes of them by tools."""
