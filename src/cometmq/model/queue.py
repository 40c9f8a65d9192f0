"""The queue of a topic, identified by topic, broker and number.

Source: MessageQueue, RocketMQ 5.3.
"""

import msgspec


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of a topic. Queues sort by topic, then broker, then number.

    It is also part of many JSON bodies, and the key of some maps in them.

    Example:
        queues: list[MessageQueue] = await producer.fetch_queues("orders")
        queue = min(queues, key=lambda queue: queue.queue_id)
        await producer.send(Message(topic="orders", body=b"42"), queue=queue)
    """

    topic: str = ""
    """The topic."""
    broker_name: str = ""
    """The name of the broker."""
    queue_id: int = 0
    """The number of the queue at this broker, from 0."""

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
