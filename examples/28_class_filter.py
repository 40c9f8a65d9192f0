"""Filter with a Python class, which runs in a filter server and not in the consumer.

Start the filter server first: cometmq filtersrv -c filtersrv.conf
"""

import asyncio
import sys

from cometmq.client import Filter, Message, Producer, PullConsumer, StartFrom

TOPIC = "json-offers"
SOURCE = """
import json

class Cheap:
    def match(self, message, context):
        offer = json.loads(message.body)
        return offer["price"] * offer["count"] < 100
"""


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with Producer(name_server, group="shop") as producer:
        for price in (12, 60, 30, 99):
            body = b'{"price": %d, "count": 3}' % price
            await producer.send(Message(topic=TOPIC, body=body))

    async with PullConsumer(name_server, group="hunters", start_from=StartFrom.FIRST) as consumer:
        wanted = Filter.of_class("Cheap", SOURCE)
        await consumer.assign(await consumer.fetch_queues(TOPIC), filter=wanted)
        while messages := await consumer.poll(timeout=5.0):
            for message in messages:
                print(f"cheap: {message.body.decode()}")
        await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
