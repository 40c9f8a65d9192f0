"""Send, consume and pull without asyncio: for scripts, notebooks and threaded programs."""

import queue
import sys

from cometmq.client import Message, StartFrom, StoredMessage
from cometmq.client.blocking import Producer, PullConsumer, PushConsumer

TOPIC = "notes"


def main(name_server: str = "127.0.0.1:9876") -> None:
    with Producer(name_server, group="writer") as producer:
        for number in range(3):
            producer.send(Message(topic=TOPIC, body=b"note %d" % number))

    received: queue.SimpleQueue[StoredMessage] = queue.SimpleQueue()

    def handle(message: StoredMessage) -> None:  # runs in a thread and may block
        received.put(message)

    first = StartFrom.FIRST
    with PushConsumer(
        name_server, group="readers", handler=handle, subscriptions={TOPIC: "*"}, start_from=first
    ):
        for _ in range(3):
            print(f"a handler got {received.get(timeout=30).body.decode()}")

    with PullConsumer(name_server, group="archive", start_from=first) as consumer:
        consumer.assign(consumer.fetch_queues(TOPIC))
        messages: list[StoredMessage] = []
        while len(messages) < 3:
            messages += consumer.poll(timeout=5.0)
        consumer.commit()
    print(f"pulled {len(messages)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
