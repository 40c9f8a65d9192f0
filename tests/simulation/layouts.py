"""The clusters that are simulated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

SYNC = {"flushDiskType": "SYNC_FLUSH"}
ASYNC = {"flushDiskType": "ASYNC_FLUSH"}
ELECTED = {
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "controllerHeartBeatTimeoutMills": "3000",
    "haMaxTimeSlaveNotCatchup": "1500",
}


@dataclass(frozen=True)
class Layout:
    """The brokers of a cluster, and what may happen to them.

    A master with slaves does not lose its power: it sends its log to them before it is on its disk,
    and may come back with less than they have. RocketMQ's protocol does not know of that. With a
    controller it may, if another living member of the in-sync set has all that was acknowledged.
    """

    name: str
    masters: tuple[str, ...] = ("broker-a",)
    slaves: int = 0
    """How many slaves the first master has."""
    settings: dict[str, str] = field(default_factory=lambda: SYNC)
    master_settings: dict[str, str] = field(default_factory=dict)
    """Further settings of the first master."""
    has_power_cuts: bool = True
    """Whether machines without slaves, and all machines of elected masters, may lose their power at
    any time."""
    loses_master: bool = False
    """Whether the first master is lost for ever at the end, and its slave takes its place. With a
    static topic the slave stays one: its queues move to other masters, which read its messages."""
    controllers: int = 0
    """How many controllers there are; then each name of a master has brokers that they elect."""
    replicas: int = 1
    """How many brokers have the name of a master, if controllers elect it."""
    load_s: float = 8.0
    """How long, in virtual time, there is load and faults happen."""
    needs_tickets: bool = False
    """Whether masters send the log only to slaves with a ticket, as with access control."""
    moves_queues: bool = False
    """Whether the topic is a static one, whose queues an operator moves among the masters."""
    has_job: bool = False
    """Whether tasks write in producer sessions."""
    has_timers: bool = False
    """Whether a producer sends timer messages, and recalls some of them."""
    has_pop: bool = False
    """Whether two groups pop."""
    faults: tuple[str, ...] = ()
    """The only faults that happen; empty for all."""

    @property
    def creates_topic(self) -> bool:
        """Whether masters create the topic at their start, and not with a send.

        The new master may not have copied it yet: then its log says so, and an operator creates it.
        """
        return (len(self.masters) > 1 or self.loses_master) and not self.moves_queues


LAYOUTS = (
    Layout("one broker"),
    Layout("one broker, asynchronous flush", settings=ASYNC, has_power_cuts=False),
    Layout(
        "synchronous slave",
        slaves=1,
        master_settings={"brokerRole": "SYNC_MASTER"},
        needs_tickets=True,
    ),
    Layout("asynchronous slaves", slaves=2, settings=ASYNC),
    Layout(
        "lost master",
        slaves=1,
        master_settings={"brokerRole": "SYNC_MASTER"},
        loses_master=True,
        needs_tickets=True,
    ),
    Layout("three masters", masters=("broker-a", "broker-b", "broker-c")),
    Layout("two masters, one with a slave", masters=("broker-a", "broker-b"), slaves=1),
    Layout(
        "elected",
        settings=SYNC | ELECTED,
        controllers=2,
        replicas=3,
        load_s=15.0,
        needs_tickets=True,
    ),
    Layout(
        "elected, asynchronous flush",
        settings=ASYNC | ELECTED | {"minInSyncReplicas": "2"},
        has_power_cuts=False,
        controllers=3,
        replicas=3,
        load_s=15.0,
    ),
)

ROUNDS = 6
"""Of so many rounds of seeds through the clusters the first and the fourth one have a job, the
second and the fifth one timer messages, and the last one groups that pop. The histories of the
others, and of planted bugs, do not depend on that."""


def layout_of(seed: int) -> Layout:
    """Return the cluster that a seed chooses."""
    turn, number = divmod(seed, len(LAYOUTS))
    kind = turn % ROUNDS
    return replace(
        LAYOUTS[number],
        has_job=kind in (0, 3),
        has_timers=kind in (1, 4),
        has_pop=kind == ROUNDS - 1,
    )


STATIC = Layout(
    "three masters, a static topic", masters=("broker-a", "broker-b", "broker-c"), moves_queues=True
)
"""Not among those that seeds choose: its messages are neither delayed nor part of transactions."""

STATIC_LOST = replace(
    STATIC,
    name="three masters, a static topic, a lost master",
    slaves=1,
    master_settings={"brokerRole": "SYNC_MASTER"},
    loses_master=True,
)
"""Neither."""
