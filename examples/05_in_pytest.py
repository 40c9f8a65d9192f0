"""Test your own code against a real cluster: pytest 05_in_pytest.py

The fixture comes with the package: a name server and a broker inside the test process.
"""

import asyncio

from cometmq.client import Message, Producer, PullConsumer


async def place_order(name_servers, number):
    """The code under test."""
    async with Producer(name_servers, group="shop") as producer:
        await producer.send(Message(topic="orders", body=b"{}", keys=[f"order-{number}"]))


async def first_key(name_servers, topic):
    async with PullConsumer(name_servers, group="test") as consumer:
        await consumer.assign(await consumer.fetch_queues(topic))
        messages = await consumer.poll(timeout=5)
        return messages[0].keys


def test_an_order_can_be_found_by_its_number(cometmq_cluster):
    asyncio.run(place_order(cometmq_cluster.name_servers, 42))

    assert asyncio.run(first_key(cometmq_cluster.name_servers, "orders")) == ["order-42"]
