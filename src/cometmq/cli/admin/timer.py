"""``cometmq admin timer``: timed messages that wait on brokers."""

from __future__ import annotations

from cometmq.cli.admin.arguments import Broker, Cluster
from cometmq.cli.admin.broker import each_broker, number, rate
from cometmq.cli.admin.commands import Call, Commands, Server
from cometmq.cli.admin.output import Row, Rows

app = Commands("Timed messages: how many wait on brokers of 5.0 and later, and how late they are.")


@app.show("list", "broker topic waiting counted_time_ms", watch=True)
async def waiting(call: Call, broker: Broker = None, cluster: Cluster = None) -> Rows:
    """Show how many timed messages of each topic wait on each broker."""

    async def find(server: Server) -> list[Row]:
        return [
            (server.name, topic, found.count, found.time_stamp)
            for topic, found in sorted((await call.admin.timer_counts(server.address)).items())
        ]

    return await each_broker(call, await call.servers(broker=broker, cluster=cluster), find)


@app.show(
    "status", "broker read_behind_ms offsets_behind congested enqueue_tps dequeue_tps", watch=True
)
async def status(call: Call, broker: Broker = None, cluster: Cluster = None) -> Rows:
    """Show whether the timers of brokers keep up."""

    async def find(server: Server) -> list[Row]:
        figures = await call.admin.broker_runtime_info(server.address)
        behind_s = number(figures, "timerReadBehind")
        return [
            (
                server.name,
                None if behind_s is None else behind_s * 1000,
                number(figures, "timerOffsetBehind"),
                number(figures, "timerCongestNum"),
                rate(figures, "timerEnqueueTps"),
                rate(figures, "timerDequeueTps"),
            )
        ]

    return await each_broker(call, await call.servers(broker=broker, cluster=cluster), find)
