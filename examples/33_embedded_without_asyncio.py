"""A program without an event loop that has its own broker.

The folder keeps the messages. Other programs that open it use the same broker.
"""

from cometmq import embedded
from cometmq.client.blocking import Producer, PullConsumer


def main() -> None:
    with embedded.open("data") as broker:
        with Producer(broker) as producer:
            producer.send("orders", b"hello", tags="paid")
        with PullConsumer(broker, topic="orders", group="audit") as consumer:
            for message in consumer:
                print("audited", message.body.decode())
                break
            consumer.commit()
    print("left")


if __name__ == "__main__":
    main()
