"""Send, pull and consume without asyncio: for scripts, notebooks and threaded programs.

Ctrl-C ends the program.
"""

import sys

from cometmq.client import Message, StartFrom, StoredMessage
from cometmq.client.blocking import Producer, PullConsumer, PushConsumer

TOPIC = "notes"


def keep(message: StoredMessage) -> None:  # runs in a thread and may block
    print(f"a handler got {message.body.decode()}")


def main(name_server: str = "127.0.0.1:9876") -> None:
    with Producer(name_server, group="writer") as producer:
        for number in range(3):
            producer.send(Message(topic=TOPIC, body=b"note %d" % number))

    first = StartFrom.FIRST
    with PullConsumer(name_server, group="archive", start_from=first) as consumer:
        consumer.assign(consumer.fetch_queues(TOPIC))
        while messages := consumer.poll(timeout=5.0):
            for message in messages:
                print(f"pulled {message.body.decode()}")
        consumer.commit()

    readers = PushConsumer(
        name_server,
        group="readers",
        handler=keep,
        subscriptions={TOPIC: "*"},
        start_from=first,
        concurrency=1,  # one call at a time; the others would run in further threads
    )
    readers.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
