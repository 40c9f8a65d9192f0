"""Pop consumption: messages are popped one by one, invisible for a time, and acknowledged."""
