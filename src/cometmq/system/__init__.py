"""The outside world behind a seam: clock, files, chance, and the settings a process is given.

Settings: `settings` declares them, `configuration` reads and changes them, `java_properties` is
their text, `rocketmq_keys` the names RocketMQ has, `settings_sample` makes sample files.
"""
