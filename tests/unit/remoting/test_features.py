"""Features of a server: objects that are made for the first request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request, Response
from cometmq.remoting.features import Deferred
from support.wire.memory_link import link

NOT_AT_REST = {
    "cometmq.access.fast_check",
    "cometmq.access.gate",
    "cometmq.access.rights",
    "cometmq.access.senders",
    "cometmq.access.plain",
    "cometmq.access.signer",
    "cometmq.access.users",
    "cometmq.broker.access.control",
    "cometmq.broker.access.account_handler",
    "cometmq.broker.access.sources",
    "cometmq.broker.access.user_handler",
    "cometmq.broker.admin.handler",
    "cometmq.broker.clients.connections",
    "cometmq.broker.cold_flow_control",
    "cometmq.broker.clients.relay",
    "cometmq.broker.groups.handler",
    "cometmq.broker.maintenance.cold_handler",
    "cometmq.broker.offsets.reset",
    "cometmq.broker.pop.acks",
    "cometmq.broker.pop.check_points",
    "cometmq.broker.pop.held_pops",
    "cometmq.broker.pop.orders",
    "cometmq.broker.pop.parts",
    "cometmq.broker.pop.request_modes",
    "cometmq.broker.pop.revive_log",
    "cometmq.broker.pop.reviver",
    "cometmq.broker.producer_sessions.sessions",
    "cometmq.broker.queries.handler",
    "cometmq.broker.replication.greeting",
    "cometmq.broker.replication.handler",
    "cometmq.broker.forwarding",
    "cometmq.broker.replication.metadata",
    "cometmq.broker.replication.returning",
    "cometmq.broker.replication.slave",
    "cometmq.broker.replication.slave_connection",
    "cometmq.broker.replication.status",
    "cometmq.broker.sending.reply",
    "cometmq.broker.static_topics.pulls",
    "cometmq.broker.static_topics.sends",
    "cometmq.broker.stats.exporter_metrics",
    "cometmq.broker.stats.group_lag",
    "cometmq.broker.stats.handler",
    "cometmq.broker.stats.metrics",
    "cometmq.broker.stats.runtime_info",
    "cometmq.broker.timers.delivered",
    "cometmq.broker.timers.delivery",
    "cometmq.broker.topics.handler",
    "cometmq.broker.transactions.check_service",
    "cometmq.broker.transactions.handler",
    "cometmq.cli.mqadmin",
    "cometmq.controller",
    "cometmq.metrics.endpoint",
    "cometmq.metrics.exporter",
    "cometmq.metrics.page",
    "cometmq.model.arguments",
    "cometmq.namesrv.admin.metrics",
    "cometmq.namesrv.kv_config.handler",
    "cometmq.namesrv.topics.handler",
    "cometmq.protocol.bodies.auth",
    "cometmq.protocol.bodies.broker_admin",
    "cometmq.protocol.bodies.client",
    "cometmq.protocol.bodies.controller",
    "cometmq.protocol.bodies.pop",
    "cometmq.protocol.headers.auth",
    "cometmq.protocol.headers.broker_admin",
    "cometmq.protocol.headers.controller",
    "cometmq.protocol.headers.group",
    "cometmq.protocol.headers.pop",
    "cometmq.protocol.headers.query",
    "cometmq.protocol.headers.table_page",
    "cometmq.protocol.headers.topic",
    "cometmq.protocol.headers.transaction",
    "cometmq.protocol.signature",
    "cometmq.remoting.certificates",
    "cometmq.remoting.socks",
    "cometmq.sql92",
    "cometmq.store.index.key_search",
    "cometmq.store.lifecycle.set_aside",
    "cometmq.store.lifecycle.truncation",
    "cometmq.store.timers.index",
    "cometmq.store.timers.timer_log",
    "cometmq.store.timers.wheel",
    "cometmq.system.platforms.interface",
    "rocksdict",
    "yaml",
    "encodings.idna",  # loads the tables of Unicode
}
"""Modules that name server and broker load with the first request that needs them, or the setting
that turns them on."""

OF_FAILOVER = ("cometmq.broker.failover.", "cometmq.controller", "aiohttp")
"""How the names of modules begin that only brokers with a controller need, and controllers."""

AT_REST = """
import asyncio, sys
from pathlib import Path
from cometmq.cli.configurations import broker_configuration, namesrv_configuration
from cometmq.cli.server_options import ServerOptions
from cometmq.cli.servers import Standalone

async def main(store):
    names = namesrv_configuration(ServerOptions(port=0), home=store)
    parts = broker_configuration(ServerOptions(port=0, store=store))
    parts.set({"fastPortEnable": "false"})
    servers = Standalone(names, parts, None)
    await servers.start()
    print(*sys.modules)
    await servers.stop()

asyncio.run(main(Path(sys.argv[1])))
"""


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


def test_servers_at_rest_have_loaded_no_more_than_they_need(tmp_path: Path) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", AT_REST, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert "cometmq.namesrv.brokers.handler" in loaded.stdout
    modules = set(loaded.stdout.split())
    assert NOT_AT_REST & modules == set()
    of_failover = {name for name in modules if name.startswith(OF_FAILOVER)}
    assert of_failover == {"cometmq.broker.failover.feature"}
