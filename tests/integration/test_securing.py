"""Follows the how-to page about accounts with its own files and commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.client import AdminClient, Message, Producer, PullConsumer
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ResponseError
from support.guides import Guide, following

SERVICE = ClientSettings(access_key="order-service", secret_key="change-this-secret-too")
OPERATIONS = ClientSettings(access_key="operations", secret_key="change-this-secret")


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    with following("secure-a-broker", tmp_path) as guide:
        yield guide


async def test_the_page_holds(guide: Guide) -> None:
    guide.run("install -m 600")
    guide.start("namesrv")
    guide.start("broker.conf")
    assert "chmod" not in guide.log()
    async with AdminClient(guide.name_servers, client=OPERATIONS) as admin:
        (orders,) = await admin.create_topic("Orders", queues=1)
        (invoices,) = await admin.create_topic("Invoices", queues=1)

    guide.run("cometmq send", "order-service")
    async with Producer(guide.name_servers, group="p", client=SERVICE) as producer:
        await producer.send(Message("Invoices", b"invoice 1"))
        with pytest.raises(ResponseError, match="No default permission for topic:Other"):
            await producer.send(Message("Other", b"x"))
    async with PullConsumer(guide.name_servers, group="order-service", client=SERVICE) as consumer:
        found = await consumer.pull(invoices, 0)
        assert [message.body for message in found.messages] == [b"invoice 1"]
        with pytest.raises(ResponseError, match="No default permission for topic:Orders"):
            await consumer.pull(orders, 0)
    async with Producer(guide.name_servers, group="p") as producer:
        with pytest.raises(ResponseError, match="No accessKey is configured"):
            await producer.send(Message("Orders", b"x"))
    assert "change-this-secret" not in guide.log()
