"""Interfaces to the operating system that tests replace: clock and files; settings; failure logs.

Settings: `settings` declares them, `configuration` reads and changes them, `java_properties` is
their text, and `rocketmq_keys` lists the names of RocketMQ.
"""
