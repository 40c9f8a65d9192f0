"""Timer messages: messages that are delivered at a time, and recalled before it.

    send      waits in queue 0 of ``rmq_sys_wheel_timer``, with its target in the properties
    recall    a message of that queue, too: it names the message that it cancels
    due       the message is stored in its target queue, and names its waiting record
    far away  a message that is far away is stored again in the queue before it is due

The log is the truth. Wheel and timer log, in `cometmq.store.timers`, are an index of the queue that
can be made again from it. Slots are passed one after the other, each when everything in it is
delivered. What a crash or a failover leaves of a slot is found in the log: a delivered message has
the log offset of its waiting record in the field of the log offset of a half message. So a message
is delivered once. A slave keeps the same index, and copies from its master which slots are passed.

    routing      which messages wait, and the properties with which they do
    recall       the request that recalls a message
    delivery     the life of the delivery: of a master, of a slave, over changes of the role
    queue_reader, slot_delivery    read the queue; deliver the messages of a slot
    delivered    finds in the log what was delivered of a slot
"""
