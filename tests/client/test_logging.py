"""Logs, errors and printed settings contain neither bodies nor secrets."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.client import (
    ClientError,
    CometError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    RemotingError,
    StartFrom,
    StoredMessage,
)
from cometmq.client.settings import ClientSettings

BODY, SECRET = "the-body-of-a-message", "the-secret-of-an-account"
CAME_S = 120.0
SIGNED = ClientSettings(access_key="account", secret_key=SECRET, security_token=SECRET)


async def test_logs_at_their_finest_hold_no_body_and_no_secret(
    name_servers: str, queues: list[MessageQueue], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    topic, tried = queues[0].topic, asyncio.Event()

    async def fail(message: StoredMessage) -> None:
        tried.set()
        raise ValueError("no such customer")

    async with Producer(name_servers, group="shop", client=SIGNED) as producer:
        await producer.send(Message(topic=topic, body=BODY.encode(), keys=["order-1"]))
        await producer.send_batch([Message(topic=topic, body=BODY.encode())] * 2)
        with pytest.raises((ClientError, RemotingError)):
            await producer.request(Message(topic=topic, body=BODY.encode()), timeout=0.2)
    first = StartFrom.FIRST
    async with PushConsumer(
        name_servers,
        group=group,
        handler=fail,
        subscriptions={topic: "*"},
        start_from=first,
        client=SIGNED,
    ):
        async with asyncio.timeout(CAME_S):
            await tried.wait()
    async with PullConsumer(
        name_servers, group=f"{group}-2", start_from=first, client=SIGNED
    ) as reader:
        await reader.assign(queues)
        async with asyncio.timeout(CAME_S):
            await anext(reader)

    assert "handler failed" in caplog.text
    assert f"group={group}" in caplog.text
    assert BODY not in caplog.text
    assert SECRET not in caplog.text


async def test_errors_hold_no_body(name_servers: str, queues: list[MessageQueue]) -> None:
    message = Message(topic="no such topic!", body=BODY.encode())
    async with Producer(name_servers, group="shop") as producer:
        with pytest.raises(CometError) as told:
            await producer.send(message)

    assert BODY not in str(told.value)


def test_printed_settings_hold_no_secret() -> None:
    assert SECRET not in repr(SIGNED)
    assert "account" in repr(SIGNED)
