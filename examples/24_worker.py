"""A worker as a service: typed orders, retries, and an end in good order on SIGTERM.

An order that cannot be read is dead-lettered at once. If the warehouse does not respond, the order
is redelivered later.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass

from cometmq.client import ConsumeLater, Message, Producer, PushConsumer, StartFrom, StoredMessage

TOPIC = "shipments"


@dataclass(frozen=True)
class Order:
    number: int
    article: str

    @classmethod
    def of(cls, message: StoredMessage) -> Order:
        return cls(**json.loads(message.body))

    def message(self) -> Message:
        body = json.dumps(asdict(self)).encode()
        return Message(topic=TOPIC, body=body, keys=[f"order-{self.number}"])


async def ship(message: StoredMessage) -> None:
    try:
        order = Order.of(message)
    except (TypeError, ValueError) as error:
        print(f"{message.keys[0]} is a dead letter")
        raise ConsumeLater(delay_level=-1) from error
    print(f"shipped {order.article} for order {order.number}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with Producer(name_server, group="shop") as producer:
        await producer.send(Order(1, "a hat").message())
        await producer.send(Message(topic=TOPIC, body=b"{}", keys=["order-2"]))

    consumer = PushConsumer(
        name_server,
        group="warehouse",
        handler=ship,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
        concurrency=50,
    )
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
