"""The log of slow requests: what is slow, where its time was spent, how many lines there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request, Response
from cometmq.remoting.requests import RequestHandler
from cometmq.remoting.slow_requests import SlowRequests, spent_on
from cometmq.system.failure_log import LINES_MAX
from support.wire.fake_transport import Wired

PULL = int(RequestCode.PULL_MESSAGE)
FIELDS = {"topic": "orders", "consumerGroup": "audit"}


def wired(handler: RequestHandler, limit_ms: int | None = 0) -> Wired:
    made = Wired({PULL: handler})
    made.connection.slow = None if limit_ms is None else SlowRequests(limit_ms, "broker")
    return made


def receive(made: Wired) -> None:
    made.connection.receive(Command(PULL, opaque=7, fields=FIELDS))


async def finished(made: Wired) -> None:
    receive(made)
    await made.settled()


def responds(request: Request) -> Response:
    return Response()


def refuses(request: Request) -> Response:
    raise ResponseError(1, "no")


def holds(request: Request) -> None:
    """Reply later, as to a pull that waits for messages."""


def in_thread(request: Request) -> Awaitable[Response]:
    async def work() -> Response:
        for what in ("thread", "flush", "thread"):
            with spent_on(what):
                await asyncio.sleep(0)
        return Response()

    return work()


@pytest.mark.parametrize("handler", [responds, refuses])
async def test_a_slow_request_is_logged_with_its_parts(
    handler: RequestHandler, caplog: pytest.LogCaptureFixture
) -> None:
    await finished(wired(handler))

    [line] = caplog.messages
    assert line.startswith(
        "slow request code=PULL_MESSAGE opaque=7 peer=10.0.0.9:51000 topic=orders group=audit ms="
    )
    assert line.partition("spent=")[2].startswith("loop:")


async def test_the_time_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    await finished(wired(in_thread))

    [line] = caplog.messages
    spent = dict(each.split(":") for each in line.partition("spent=")[2].split(","))
    assert list(spent) == ["thread", "flush", "loop"]
    [ms] = [word for word in line.split() if word.startswith("ms=")]
    assert abs(int(ms[3:]) - sum(map(int, spent.values()))) <= len(spent)


@pytest.mark.parametrize("handler", [responds, holds])
async def test_a_quick_request_and_one_that_is_held_are_not_slow(
    handler: RequestHandler, caplog: pytest.LogCaptureFixture
) -> None:
    await finished(wired(handler, limit_ms=60_000))

    assert caplog.messages == []


async def test_no_request_is_logged_without_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    made = wired(responds, limit_ms=None)
    receive(made)
    await made.answered(1)

    assert caplog.messages == []


async def test_a_peer_that_does_not_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    made = wired(responds)
    made.connection.pause_writing()
    made.connection.resume_writing()

    [line] = caplog.messages
    assert line.startswith("slow responses peer=10.0.0.9:51000 ms=")
    assert "spent=socket:" in line


def test_many_slow_requests_have_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowRequests(1000, "broker")
    for opaque in range(LINES_MAX + 5):
        slow.add(10, opaque, "peer", 2.0, {"flush": 2.0}, topic="orders")
    slow.settle(now=True)

    assert len(caplog.messages) == LINES_MAX + 1
    assert caplog.messages[0] == (
        "slow request code=SEND_MESSAGE opaque=0 peer=peer topic=orders group=- ms=2000"
        " spent=flush:2000"
    )
    assert caplog.messages[-1] == "5 more slow requests server=broker"


def test_an_unknown_code_and_a_long_name_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    SlowRequests(0, "broker").add(4711, 1, "peer", 2.0, {}, topic="t" * 1000)

    assert "code=4711 " in caplog.messages[0]
    assert len(caplog.messages[0]) < 400


def test_time_outside_of_a_request_is_not_counted() -> None:
    with spent_on("thread"):
        pass
