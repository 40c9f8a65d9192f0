"""Dead letters of several brokers, of brokers without an index, and of a large number."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest

from cometmq.client import AdminClient, ClientError, Message, Producer
from cometmq.client.admin import DeadLetter, ResendStatus, ResendTo
from cometmq.model.topic import dlq_topic, retry_topic
from cometmq.protocol.codes import RequestCode
from cometmq.testing import Cluster
from support.clients.dead_letters import give_up

GROUP, TOPIC = "billing-desk", "invoices"


async def made(admin: AdminClient) -> None:
    """Create the topics and the group."""
    await admin.create_topic(TOPIC, queues=4)
    await admin.create_topic(dlq_topic(GROUP), queues=1)
    await admin.create_topic(retry_topic(GROUP), queues=1)
    await admin.create_group(GROUP)


async def test_dead_letters_of_two_brokers_are_in_one_order() -> None:
    async with Cluster(brokers=2) as cluster, AdminClient(cluster.name_servers) as admin:
        await made(admin)
        for number in range(20):
            await give_up(admin, GROUP, TOPIC, [b"%d" % number])
            await asyncio.sleep(0.002)  # so that no two have the same store time
        page = await admin.dead_letters(GROUP, limit=7)
        letters: list[DeadLetter] = []
        while page.letters:
            letters += page.letters
            page = await admin.dead_letters(GROUP, limit=7, ranges=page.rest)
        [count] = await admin.dead_letter_counts()
        results = await admin.resend_dead_letters(letters, to=ResendTo.TOPIC)
        repeated = await admin.resend_dead_letters(letters, to=ResendTo.TOPIC)

    assert [letter.message.body for letter in letters] == [b"%d" % each for each in range(20)]
    assert len({letter.queue.broker_name for letter in letters}) == 2
    assert count.letters == 20
    assert {each.status for each in results} == {ResendStatus.SENT}
    assert {each.status for each in repeated} == {ResendStatus.SKIPPED}
    assert [each.message_id for each in repeated] == [each.message_id for each in results]


async def test_a_broker_without_an_index_sends_nothing_again_unless_that_is_wanted() -> None:
    async with (
        Cluster(settings={"messageIndexEnable": "false"}) as cluster,
        AdminClient(cluster.name_servers) as admin,
    ):
        await made(admin)
        await give_up(admin, GROUP, TOPIC, [b"1"])
        letters = (await admin.dead_letters(GROUP)).letters

        with pytest.raises(ClientError, match="messageIndexEnable=false"):
            await admin.resend_dead_letters(letters)
        [result] = await admin.resend_dead_letters(letters, again=True)

    assert result.status is ResendStatus.SENT


async def test_a_broker_that_takes_smaller_messages_now_refuses_with_its_reason() -> None:
    async with Cluster() as cluster, AdminClient(cluster.name_servers) as admin:
        await made(admin)
        body = random.Random(1).randbytes(3_000_000)  # which cannot be compressed
        await give_up(admin, GROUP, TOPIC, [body, b"1"])
        letters = (await admin.dead_letters(GROUP)).letters
        for address in cluster.broker_addresses:
            await admin.call(
                address, RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1000000\n"
            )

        failed, sent = await admin.resend_dead_letters(letters)

    assert (failed.status, sent.status) == (ResendStatus.FAILED, ResendStatus.SENT)
    assert "1000000" in failed.reason


async def test_ten_thousand_dead_letters_are_read_in_little_memory() -> None:
    number, body = 10_000, bytes(4_000)
    async with Cluster() as cluster, AdminClient(cluster.name_servers) as admin:
        await made(admin)
        async with Producer(cluster.name_servers, group="shop") as producer:
            for _ in range(number // 100):
                batch = [
                    Message(dlq_topic(GROUP), body, properties={"own": "1"}) for _ in range(100)
                ]
                await producer.send_batch(batch)
        page = await admin.dead_letters(GROUP, limit=100)  # what is loaded once is loaded now
        tracemalloc.start()
        try:
            found = 0
            while page.letters:
                found += len(page.letters)
                page = await admin.dead_letters(GROUP, limit=100, ranges=page.rest)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert found == number
    assert peak < 8_000_000, "more than some pages are in memory"
