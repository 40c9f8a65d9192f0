"""``cometmq admin cluster``: clusters with their brokers and load."""

from __future__ import annotations

from typing import Annotated

import typer

from cometmq.cli.admin.commands import CLUSTER, Call, Commands
from cometmq.cli.admin.output import Row, Rows
from cometmq.model.runtime_figures import number, rate, ratio, totals
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.route import RegisteredBroker

app = Commands("Clusters: their brokers, load, totals and response times.")


@app.each(
    "list",
    "cluster broker id address version in_tps out_tps send_wait_ms pull_wait_ms"
    " oldest_message_age_ms disk_used_ratio active",
    slaves=True,
    watch=True,
    chooses=CLUSTER,
)
async def list_clusters(call: Call, server: RegisteredBroker) -> list[Row]:
    """List the brokers of clusters with their load."""
    figures = await call.admin.broker_runtime_info(server.address)
    oldest_ms = number(figures, "earliestMessageTimeStamp")
    age = now_ms() - oldest_ms if oldest_ms and oldest_ms > 0 else None
    active = figures.get("brokerActive")
    return [
        (
            *(server.cluster, server.name, server.id, server.address),
            figures.get("brokerVersionDesc"),
            rate(figures, "putTps"),
            rate(figures, "getTransferredTps", "getTransferedTps"),
            number(figures, "sendThreadPoolQueueHeadWaitTimeMills"),
            number(figures, "pullThreadPoolQueueHeadWaitTimeMills"),
            age,
            ratio(figures, "commitLogDiskRatio"),
            None if active is None else active == "true",
        )
    ]


@app.each(
    "totals",
    "cluster broker id in_yesterday out_yesterday in_today out_today",
    slaves=True,
    watch=True,
    chooses=CLUSTER,
)
async def list_totals(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show how many messages each broker has stored and sent to consumers, today and yesterday."""
    figures = await call.admin.broker_runtime_info(server.address)
    return [(server.cluster, server.name, server.id, *totals(figures))]


@app.show("latency", "topic mean_ms sent failed", watch=True, chooses=CLUSTER)
async def latency(
    call: Call,
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Topics; if none is given, the topic of each broker's name."),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=2, max=10_000, help="Test messages.")] = 100,
    size: Annotated[
        int, typer.Option("--size", min=1, max=4_194_304, help="Bytes of a test message.")
    ] = 128,
) -> Rows:
    """Send test messages, which stay in the topic, and show the mean response time.

    Topics that are named must exist: a test creates none.
    """
    from cometmq.cli.messages import measured_sends
    from cometmq.client import Producer

    for topic in topics or ():
        await call.admin.topic_configs(topic)
    wanted = topics or [each.name for each in await call.servers()]
    async with Producer(group="cometmq-cli-latency", instance=call.instance) as producer:
        return [
            (topic, *await measured_sends(producer, topic, count=count, size=size))
            for topic in wanted
        ]
