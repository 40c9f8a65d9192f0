"""A stream of messages goes on through every fault of the network and of the servers.

Links that misbehave stand before our cluster, and on long runs before real ones too: what they do
to a client does not depend on who answers behind them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor

import pytest
from servers import Cluster

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from support.checks.waiting import until
from support.clients.stream import all_kinds
from support.network.fault_proxy import FaultProxy, Proxied, proxied
from support.runner.tiers import rounds

PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2})


Change = Callable[[FaultProxy], Awaitable[None] | None]

JUNK = (
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x7f\xff\xff\xff\x00\x00\x00\x10" + bytes(64),
    b"\x00\x00\x00\x04\x00\xff\xff\xff",
    b"\x00\x00\x00\x0a\x00\x00\x00\x06{oops}",
    b"\x00\x00\x00\x09\x09\x00\x00\x05abcde",
)
"""Another protocol; a frame too large; a header beyond its frame; no JSON; no known encoding."""

on_links = pytest.mark.long_elsewhere


@pytest.fixture
async def links(cluster: Cluster) -> AsyncIterator[Proxied]:
    """Links before the shared cluster."""
    async with proxied(cluster) as standing:
        yield standing


@on_links
async def test_the_stream_goes_on_when_every_connection_is_cut_in_the_middle_of_a_frame(
    links: Proxied, group: str
) -> None:
    async with all_kinds(links.address, group) as running:
        await running.goes_on()
        for number in range(rounds(test=3, long=30)):
            cuts = links.broker.cuts
            links.broker.cut(after_bytes=1000 + 37 * number, answers=number % 2 == 0)
            await links.broker.until(lambda cuts=cuts: links.broker.cuts > cuts)
            await running.goes_on(5)


@on_links
async def test_the_stream_goes_on_when_all_connections_are_reset(
    links: Proxied, group: str
) -> None:
    async with all_kinds(links.address, group) as running:
        for _ in range(rounds(test=3, long=30)):
            await running.goes_on(5)
            links.broker.hang_up()
        await running.goes_on()


FAULTS: dict[str, tuple[Change, int, Change]] = {
    "answers come late": (lambda link: link.delay(0.3), 0, lambda link: link.delay(0)),
    "answers come later than anybody waits": (
        *(lambda link: link.delay(2.2), 1, lambda link: link.delay(0)),
    ),
    "silence": (lambda link: link.stall(), 1, lambda link: link.flow()),
    "refused connections": (lambda link: link.refuse(), 2, lambda link: link.accept()),
}
"""What begins a fault of the broker, how many errors it causes at least, and what ends it."""


@on_links
@pytest.mark.parametrize(("begin", "errors", "end"), FAULTS.values(), ids=FAULTS)
async def test_the_stream_goes_on_after_a_fault_of_the_broker(
    links: Proxied, group: str, begin: Change, errors: int, end: Change
) -> None:
    async with all_kinds(links.address, group) as running:
        await running.goes_on()
        if (beginning := begin(links.broker)) is not None:
            await beginning
        await (running.meets_errors(errors) if errors else running.goes_on(3))
        if (ending := end(links.broker)) is not None:
            await ending
        await running.goes_on()


@on_links
async def test_the_stream_goes_on_when_a_broker_answers_with_junk(
    links: Proxied, group: str
) -> None:
    async with all_kinds(links.address, group) as running:
        await running.goes_on()
        for junk in JUNK:
            links.broker.spoil(junk)
            await links.broker.until(lambda: links.broker.junk is None)
            await running.goes_on(3)


@on_links
async def test_the_stream_goes_on_when_answers_are_lost(links: Proxied, group: str) -> None:
    """Every fourth answer to a pull and to a send; the senders and pullers run into timeouts."""
    counted = {"answers": 0}

    def some(request: Command, _: Command) -> bool:
        counted["answers"] += request.code in PULLS | SENDS
        return request.code in PULLS | SENDS and counted["answers"] % 4 == 0

    async with all_kinds(links.address, group) as running:
        await running.goes_on()
        links.broker.drop_answers(some)
        await links.broker.until(lambda: links.broker.dropped >= 3)
        links.broker.drop_answers(None)
        await running.goes_on()


@on_links
async def test_the_stream_does_not_need_the_name_server(links: Proxied, group: str) -> None:
    async with all_kinds(links.address, group) as running:
        await running.goes_on()
        await links.name_server.refuse()
        await running.goes_on()
        links.broker.hang_up()
        await running.goes_on()
        await links.name_server.accept()
        await running.goes_on()


@on_links
async def test_a_broker_that_is_away_is_not_asked_in_a_busy_loop(
    links: Proxied, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What twelve queues and the background tasks of six clients try within a second is little."""
    async with all_kinds(links.address, group) as running:
        await running.goes_on()
        await running.rest()
        with caplog.at_level(logging.WARNING):
            before, began_s = links.broker.accepted, time.monotonic()
            links.broker.hang_up_on_connect = True
            links.broker.hang_up()
            await asyncio.sleep(1.0)
            await until(lambda: links.broker.accepted >= before + 3 and bool(caplog.records))
            tries, told = links.broker.accepted - before, len(caplog.records)
            elapsed_s = time.monotonic() - began_s
            links.broker.hang_up_on_connect = False

        assert tries <= 150 * elapsed_s
        assert told <= 100 * elapsed_s
        assert [line for line in caplog.records if line.exc_info] == []
        assert all("error=" in line.message or "queue=" in line.message for line in caplog.records)


@on_links
async def test_an_idle_consumer_asks_no_more_than_its_held_pulls(
    links: Proxied, group: str
) -> None:
    async with all_kinds(links.address, group) as running:
        await running.goes_on()
        await running.rest()
        await asyncio.sleep(0.5)
        before, began_s = links.broker.requests.total(), time.monotonic()
        await asyncio.sleep(2.0)
        asked = links.broker.requests.total() - before
        elapsed_s = time.monotonic() - began_s

    # Twelve queues pull once a second; heartbeats, commits, locks and members' lists besides.
    assert asked <= 20 + 40 * elapsed_s


async def test_nothing_is_lost_when_the_broker_is_killed_and_comes_back(
    cluster: Cluster, group: str, starter: Executor
) -> None:
    """The shared cluster's broker: it comes back as it was."""
    loop = asyncio.get_running_loop()
    async with all_kinds(cluster.namesrv, group) as running:
        await running.goes_on()
        for _ in range(rounds(test=1, long=5)):
            await loop.run_in_executor(starter, cluster.kill_broker)
            await loop.run_in_executor(starter, cluster.start_broker)
            await running.goes_on()
