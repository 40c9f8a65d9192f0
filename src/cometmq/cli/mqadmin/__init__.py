"""``cometmq mqadmin``: RocketMQ's tool for administrators, with its commands, flags and printouts.

Each module with commands requests from servers what it shows, and prints it as RocketMQ's tool.
"""
