"""The log under a controller: what `cometmq.broker.replication` does, with epochs.

epoch_file          which master wrote which part of the log
wire                what master and slave send to each other
master, slave       the two sides of a connection
in_sync             the in-sync set, as the master sees it
acknowledgements    which sends wait for that set
replication         all of it for one broker, which leads or follows
"""
