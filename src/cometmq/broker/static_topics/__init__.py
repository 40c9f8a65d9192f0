"""Static topics: logical queues whose messages may lie on several brokers, one after the other.

    mappings    topic → the part of this broker: for each logical queue that it leads, or has led,
                the items of the queue (`protocol/logical_queues.py` has their rules)
    513         replaces a part: everything is checked first, then mapping and topic are written
    send        goes to the physical queue of the last item, if this broker leads the queue
    pull        reads the item that has the offset: here, or at its broker by a forwarded request
    offsets     bounds, times and committed offsets likewise; a broker keeps physical offsets only

A broker that does not lead a queue responds with 501. A request with ``lo=false`` is physical: it
names a physical queue, and the mapping is not looked at. Forwarded requests are physical.

Requests for topics without a mapping are not changed: sends and pulls look a topic up in one dict,
which is empty on most brokers, and the fast path of sends does so once per topic.

Source: TopicQueueMappingManager and the processors that use it, RocketMQ 5.3. The differences to it
are listed in docs/explanation/differences.md.
"""
