"""``cometmq admin timer``: timed messages that wait on brokers."""

from __future__ import annotations

from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.output import Row
from cometmq.cli.figures import number, rate
from cometmq.protocol.bodies.route import RegisteredBroker

app = Commands("Timed messages: how many wait on brokers of 5.0 and later, and how late they are.")


@app.each("list", "broker topic waiting counted_time_ms", watch=True)
async def waiting(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show how many timed messages of each topic wait on each broker."""
    return [
        (server.name, topic, found.count, found.time_stamp)
        for topic, found in sorted((await call.admin.timer_counts(server.address)).items())
    ]


@app.each(
    "status", "broker read_behind_ms offsets_behind congested enqueue_tps dequeue_tps", watch=True
)
async def status(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show whether the timers of brokers keep up."""
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
