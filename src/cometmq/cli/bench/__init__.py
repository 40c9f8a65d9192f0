"""``cometmq bench``: loads a server of CometMQ, RocketMQ, Kafka or NATS, and measures it.

app                     the commands and their options
 │
results                 a result as text, as a file, and beside other results
 │
run                     warm-up, measured time, progress
 │
comet · kafka · nats    the loads, each a coroutine that counts in a `Meter`
 │
meter                   counts and durations; what a load is
"""
