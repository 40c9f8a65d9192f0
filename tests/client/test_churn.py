"""Eight members that join, leave and are killed under load lose nothing, and keep the order.

On long runs this takes two minutes each way, and members of the ordered group are killed too; a
broker keeps the locks of the dead for a minute, for which a short run has no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import Cluster, connect, new_group, new_topic

from support.clients.churn import MEMBERS, Crowd
from support.clients.delivery_check import badly_shared, lost, out_of_order, skipped
from support.runner.tiers import is_long_run, new_seed, rounds

pytestmark = pytest.mark.long_elsewhere

QUEUES = 16
OVERLAP_S = 60.0
"""Members rebalance once a second and when told, but eight processes may share one slow core.

They are asked one after the other, too: what they say is not from one moment.
"""
CALM_S = 120.0
LOCKS_S = 180.0
LONG = is_long_run()


@pytest.fixture
def crowd(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Crowd]]:
    """Gather members on a new topic; their processes end with the test."""
    gathered: list[Crowd] = []
    broker = connect(cluster.broker)

    def gather(**how: bool) -> Crowd:
        seed = new_seed()
        print(f"seed {seed}")
        topic, group = new_topic(cluster, broker, queues=QUEUES), new_group(cluster, broker)
        crowd = Crowd(
            cluster.namesrv, topic, group, tmp_path, overlap_s=OVERLAP_S, seed=seed, **how
        )
        gathered.append(crowd)
        crowd.gather()
        return crowd

    yield gather
    broker.close()
    for crowd in gathered:
        crowd.close()


def becomes_fair(crowd: Crowd, within: float) -> None:
    """Wait until the members that are left share the queues without overlap or gap."""
    deadline = time.monotonic() + within
    while True:
        owned = crowd.owned()
        queues = {queue for has in owned.values() for queue in has if "%RETRY%" not in queue}
        problems = badly_shared(sorted(queues), owned) if len(queues) == QUEUES else ["gaps"]
        if not problems:
            return
        if time.monotonic() > deadline:
            held = "\n".join(f"{name}: {has}" for name, has in owned.items())
            pytest.fail(f"{problems} after {within} s\n{held}\n{crowd.done[-20:]}")
        time.sleep(0.2)


def sees_everything(crowd: Crowd, within: float) -> None:
    deadline = time.monotonic() + within
    while (missing := lost(crowd.stored, crowd.seen())) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert missing == [], crowd.done[-20:]


def test_no_message_is_lost_and_no_queue_shared_while_members_come_go_and_die(
    crowd: Callable[..., Crowd],
) -> None:
    running = crowd(ordered=False, deaths=True)

    running.churn(rounds(test=4, long=120))
    becomes_fair(running, CALM_S)
    sees_everything(running, CALM_S)

    assert running.overlaps.problems == []
    assert skipped(running.seen()) == []
    assert len(running.done) >= MEMBERS + 4


def test_the_order_of_each_queue_holds_while_members_come_and_go(
    crowd: Callable[..., Crowd],
) -> None:
    running = crowd(ordered=True, deaths=LONG)

    running.churn(rounds(test=4, long=120))
    becomes_fair(running, LOCKS_S if LONG else CALM_S)
    sees_everything(running, CALM_S)

    assert running.overlaps.problems == []
    assert out_of_order(running.seen()) == []
    assert skipped(running.seen()) == []
