"""The examples in the docstrings of public names do what they show.

Each public class of the client has one, below a line ``Example:``. An example runs with all public
names, and with the objects that `shared` makes: applications know what they stand for.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import os
import signal
import textwrap
import types
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from cometmq.client import (
    AdminClient,
    ClientInstance,
    CometError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    TransactionProducer,
)
from cometmq.client.admin import DeadLetterPage
from support.brokers.clusters import TARGETS
from support.brokers.transaction_broker import Commits
from support.clients.client_names import public_names
from support.clients.dead_letters import give_up
from support.runner.versions import POP_SERVERS

NEEDS_POP = dict.fromkeys(("PopConsumer", "SimpleConsumer", "ReceiptExpiredError"), POP_SERVERS)
"""Examples of pop consumption, and the clusters that serve it."""
NOT_BROUGHT_ABOUT = {
    "ConsumeLater",
    "CallTimeoutError",
    "CompressionError",
    "ConnectionLostError",
    "NoMasterError",
    "ProtocolError",
    "TooManyCallsError",
}
"""Errors whose examples show where they are raised or caught; the other examples print theirs."""
EXAMPLE_S = 60
DEAD_LETTERS = "%DLQ%ledger-desk"
ORDERS, RETURNS = "docstring-orders", "docstring-returns"
"""Stand for the topics of the examples: other tests count the messages of those on one cluster."""


def public_classes() -> Iterator[type]:
    return (thing for thing in dict.fromkeys(public_names().values()) if isinstance(thing, type))


def example_of(kind: type) -> str:
    """The code below the line ``Example:`` at the end of a docstring; empty if there is none."""
    text = textwrap.dedent((inspect.getdoc(kind) or "").partition("\nExample:\n")[2])
    return text.replace('"orders"', f'"{ORDERS}"').replace('"returns"', f'"{RETURNS}"')


def with_clusters(kind: type) -> ParameterSet:
    served = NEEDS_POP.get(kind.__name__, TARGETS)
    return pytest.param(kind, id=kind.__name__, marks=pytest.mark.only_on(*served))


@pytest.fixture
async def shared(
    name_servers: str, instance: ClientInstance, tmp_path: Path
) -> AsyncIterator[dict[str, Any]]:
    """The public names, and the objects that examples use without making them."""
    known = public_names()
    async with AsyncExitStack() as opened:
        admin = await opened.enter_async_context(AdminClient(instance=instance))
        producer = await opened.enter_async_context(Producer(name_servers, group="shop"))
        consumer = await opened.enter_async_context(PullConsumer(name_servers, group="readers"))
        queues: list[MessageQueue] = await admin.create_topic(ORDERS, queues=4)
        await admin.create_topic(RETURNS, queues=1)
        receipt = await producer.send(Message(ORDERS, b"42", tags="paid"), queue=queues[0])
        message = await admin.message_at(receipt.offset_message_id)
        known["transactions"] = await opened.enter_async_context(
            TransactionProducer(name_servers, group="books", listener=Commits())
        )
        page = await page_of_dead_letters(admin)
        yield known | {
            "Sequence": Sequence,
            "asyncio": asyncio,
            "timedelta": timedelta,
            "name_server": name_servers,
            "instance": instance,
            "admin": admin,
            "producer": producer,
            "consumer": consumer,
            "listener": Commits(),
            "queue": receipt.queue,
            "message": message,
            "page": page,
            "results": await admin.resend_dead_letters(page.letters, dry_run=True),
            "folder": tmp_path,
        }


async def page_of_dead_letters(admin: AdminClient) -> DeadLetterPage:
    """A page of dead letters that no consumer gave up."""
    await admin.create_topic(DEAD_LETTERS, queues=1)
    await give_up(admin, "ledger-desk", ORDERS, [b"42"])
    return await admin.dead_letters("ledger-desk", limit=10)


@pytest.mark.parametrize("kind", [with_clusters(kind) for kind in public_classes()])
async def test_an_example_does_what_it_shows(
    kind: type,
    shared: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    example = example_of(kind)
    assert kind.__name__ in example, "the example does not show it"
    code = compile(example, kind.__name__, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    capsys.readouterr()

    async with asyncio.timeout(EXAMPLE_S):
        running = types.FunctionType(code, shared)()
        if inspect.isawaitable(running):
            await (ended_by_a_signal(running) if ".run()" in example else running)

    errors = [line.message for line in caplog.records if line.levelno >= logging.ERROR]
    assert errors == [], "what a hook raises is only logged"
    if issubclass(kind, CometError) and kind.__name__ not in NOT_BROUGHT_ABOUT:
        assert capsys.readouterr().out, "the example has not brought about the error"


async def ended_by_a_signal(program: Coroutine[Any, Any, None]) -> None:
    """Run a program that runs until SIGTERM, and send the signal as soon as it is handled."""
    before = signal.getsignal(signal.SIGTERM)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(program)
        while signal.getsignal(signal.SIGTERM) is before and not running.done():
            await asyncio.sleep(0.01)
        if not running.done():
            os.kill(os.getpid(), signal.SIGTERM)
