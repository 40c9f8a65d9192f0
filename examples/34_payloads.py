"""Send orders as JSON, and handle orders of an older version too, until Ctrl-C or SIGTERM.

A message that cannot be read becomes a dead letter at once: no retry would change that.
"""

import asyncio
import sys

import msgspec

from cometmq.client import ConsumeLater, Message, Producer, PushConsumer, StartFrom, StoredMessage

TOPIC = "typed-orders"


class Order(msgspec.Struct):
    id: str
    amount: int
    currency: str = "EUR"  # added later: older messages get the default


async def ship(message: StoredMessage) -> None:
    try:
        order = msgspec.json.decode(message.body, type=Order)
    except msgspec.DecodeError as error:
        raise ConsumeLater(delay_level=-1) from error
    print(f"{order.id}: {order.amount} {order.currency}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with Producer(name_server, group="shop") as producer:
        bodies = (
            b'{"id": "order-1", "amount": 12}',
            msgspec.json.encode(Order("order-2", 30, "USD")),
            b"no order",
        )
        for body in bodies:
            properties = {"content-type": "application/json"}
            await producer.send(Message(topic=TOPIC, body=body, properties=properties))

    consumer = PushConsumer(
        name_server,
        group="shipping",
        handler=ship,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
    )
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
