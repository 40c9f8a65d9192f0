"""Receive only the messages whose properties satisfy an SQL92 expression.

The brokers evaluate it if their setting ``enablePropertyFilter`` is on; the program switches it on.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Filter, Message, Producer, PullConsumer, StartFrom

TOPIC = "offers"
OFFERS = (("hat", "red", 12), ("coat", "blue", 80), ("scarf", "blue", 9), ("gloves", "red", 25))


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=1)
        for broker in (await admin.cluster_info()).broker_addr_table.values():
            await admin.set_broker_config(broker.broker_addrs[0], {"enablePropertyFilter": "true"})

    async with Producer(name_server, group="shop") as producer:
        for name, color, price in OFFERS:
            properties = {"color": color, "price": str(price)}
            message = Message(topic=TOPIC, body=name.encode(), properties=properties)
            await producer.send(message)

    wanted = Filter.sql("color = 'blue' OR price BETWEEN 20 AND 30")
    async with PullConsumer(
        name_server,
        group="bargain-hunters",
        subscriptions={TOPIC: wanted},
        start_from=StartFrom.FIRST,
    ) as consumer:
        await consumer.ready()
        while messages := await consumer.poll(timeout=5.0):
            for message in messages:
                print(f"{message.body.decode()}: {message.properties['price']}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
