"""The format ``rocketmq-log``: the commit log of a broker, read from its files."""
