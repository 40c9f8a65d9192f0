"""Test your own code against a real broker. Run: ``pytest examples/08_in_pytest.py``.

The package provides the fixture: a name server and a broker in the test process.
"""

import asyncio

from cometmq.client import Message, Producer, PullConsumer, StartFrom


async def place_order(name_server: str, number: int) -> None:
    """The code under test."""
    async with Producer(name_server, group="shop") as producer:
        await producer.send(Message(topic="placed", body=b"{}", keys=[f"order-{number}"]))


async def keys_of_first_message(name_server: str, topic: str) -> list[str]:
    first = StartFrom.FIRST
    async with PullConsumer(name_server, group="test", start_from=first) as consumer:
        await consumer.assign(await consumer.fetch_queues(topic))
        messages = await consumer.poll(timeout=5.0)
        return messages[0].keys


def test_an_order_can_be_found_by_its_number(cometmq_cluster) -> None:
    asyncio.run(place_order(cometmq_cluster.name_servers, 42))

    keys = asyncio.run(keys_of_first_message(cometmq_cluster.name_servers, "placed"))

    assert keys == ["order-42"]
