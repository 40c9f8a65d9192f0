"""Telemetry: the settings of clients and servers, and commands to clients.

Source: ClientActivity and GrpcClientSettingsManager, RocketMQ 5.3.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from cometmq.model.errors import CometError
from cometmq.model.group import CUSTOMIZED, EXPONENTIAL, SubscriptionGroupConfig
from cometmq.proxy.checks import BODY_BYTES_MAX
from cometmq.proxy.clients import PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER, Client
from cometmq.proxy.conversion import set_milliseconds
from cometmq.proxy.messages import TYPES
from cometmq.proxy.status import OK, Code, StatusError
from cometmq.proxy.topics import Topics

SEND_ATTEMPTS = 3
SEND_BACKOFF_MS = (10, 1_000, 2.0)
RECEIVE_BATCH, LONG_POLL_MS = 32, 20_000
RETRY_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The delays of the default policy."""
EXPONENTIAL_MS = (5_000, 2 * 3_600_000, 2.0)
TYPES_SERVED = (PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER)


async def merged(client: Client, topics: Topics) -> Any:
    """Return the settings of a client with what servers decide."""
    made = TYPES["Settings"]()
    made.CopyFrom(client.settings)
    if client.type == PRODUCER:
        made.publishing.max_body_size = BODY_BYTES_MAX
        made.publishing.validate_message_type = True
        made.backoff_policy.max_attempts = SEND_ATTEMPTS
        _exponential(made.backoff_policy.exponential_backoff, *SEND_BACKOFF_MS)
    else:
        group = await topics.group(client.group, client.topics())
        made.subscription.fifo = group.consume_message_orderly
        made.subscription.receive_batch_size = RECEIVE_BATCH
        set_milliseconds(made.subscription.long_polling_timeout, LONG_POLL_MS)
        made.backoff_policy.max_attempts = group.retry_max_times + 1
        _retries(made.backoff_policy, group)
    made.metric.on = False
    return made


def _retries(policy: Any, group: SubscriptionGroupConfig) -> None:
    given = group.group_retry_policy
    if given.type == EXPONENTIAL:
        own = given.exponential_retry_policy
        initial_ms, max_ms, multiplier = EXPONENTIAL_MS
        if own is not None:
            initial_ms, max_ms, multiplier = own.initial, own.max, own.multiplier
        _exponential(policy.exponential_backoff, initial_ms, max_ms, multiplier)
        return
    customized = given.customized_retry_policy if given.type == CUSTOMIZED else None
    own_ms = customized.next if customized is not None else None
    for delay_ms in own_ms or [each * 1000 for each in RETRY_S]:
        set_milliseconds(policy.customized_backoff.next.add(), delay_ms)


def _exponential(backoff: Any, initial_ms: int, max_ms: int, multiplier: float) -> None:
    set_milliseconds(backoff.initial, initial_ms)
    set_milliseconds(backoff.max, max_ms)
    backoff.multiplier = multiplier


async def telemetry(
    client: Client, topics: Topics, commands: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    """Serve the stream of a client: take its settings and answers, yield settings and commands.

    Raises:
        StatusError: its settings are not valid.
    """
    out = client.attach()

    async def read() -> None:
        try:
            async for command in commands:
                client.sees()
                await _take(client, topics, command, out)
            await out.put(None)
        except CometError as error:
            await out.put(error)

    reading = asyncio.create_task(read())
    try:
        while (command := await out.get()) is not None:
            if isinstance(command, CometError):
                raise command
            yield command
    finally:
        client.detach(out)
        reading.cancel()
        await asyncio.wait([reading])


async def _take(client: Client, topics: Topics, command: Any, out: asyncio.Queue[Any]) -> None:
    kind = command.WhichOneof("content")
    if kind == "settings":
        if command.settings.client_type not in TYPES_SERVED:
            raise StatusError(
                Code.BAD_REQUEST,
                f"client type {command.settings.client_type}: expected a producer, a push consumer"
                " or a simple consumer",
            )
        await client.apply(command.settings)
        settings = await merged(client, topics)
        await out.put(TYPES["TelemetryCommand"](status=OK, settings=settings))
    elif kind == "thread_stack_trace":
        client.answered(command.thread_stack_trace.nonce, command.thread_stack_trace)
    elif kind == "verify_message_result":
        client.answered(command.verify_message_result.nonce, command.status)
