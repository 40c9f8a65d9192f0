"""Plain access control, as in RocketMQ 4.4 to 5.3.2: accounts in YAML files."""
