"""``cometmq mqadmin``: RocketMQ's tool for administrators, with its commands, flags and printouts.

Each module with commands asks servers for what it shows, and prints that as RocketMQ's tool does.
"""
