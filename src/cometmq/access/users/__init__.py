"""Users and policies, the access control 2.0 of RocketMQ 5.3."""
