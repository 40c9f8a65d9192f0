"""Features of a server: objects that are made for the first request."""

from __future__ import annotations

import subprocess
import sys

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request, Response
from cometmq.remoting.features import Deferred
from support.memory_link import link

NOT_AT_REST = (
    "broker.clients.connections",
    "broker.clients.relay",
    "broker.groups.handler",
    "broker.offsets.reset",
    "broker.queries.handler",
    "broker.replication.metadata",
    "broker.replication.slave",
    "broker.stats.group_lag",
    "broker.stats.handler",
    "broker.stats.runtime_info",
    "broker.topics.handler",
    "broker.transactions.check_service",
    "broker.transactions.handler",
    "sql92",
)
"""Modules that a broker loads with the first request that needs them."""


class Counter:
    """Handles a request; counts its objects."""

    made = 0

    def __init__(self) -> None:
        Counter.made += 1

    def handle(self, request: Request) -> Response:
        return Response(remark=f"{request.body!r}")


async def test_an_object_is_made_for_the_first_request_and_once() -> None:
    Counter.made = 0
    deferred = Deferred(Counter)
    handlers = {RequestCode.QUERY_MESSAGE: deferred.handler(lambda counter: counter.handle)}
    _, client = link(handlers)
    assert (Counter.made, deferred.made()) == (0, None)

    for body in (b"1", b"2"):
        response = await client.call(RequestCode.QUERY_MESSAGE, body=body, timeout=60)
        assert response.remark == f"{body!r}"

    assert Counter.made == 1
    assert deferred.made() is deferred.get()


def test_a_broker_is_loaded_without_what_it_needs_for_few_requests() -> None:
    code = "import sys, cometmq.broker.app; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert set(loaded.stdout.split()).isdisjoint(f"cometmq.{name}" for name in NOT_AT_REST)
