"""How long RocketMQ's clients with default settings fail after an elected master is killed.

With two broker names they send to the other one. With one name they send when they have looked for
a new route, which they do every 30 seconds, or when the killed broker is back as a slave: it
forwards sends to the new master.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from programs import CPP, GO, JAVA_49, JAVA_53, Client, Kind

from support.controllers.elected_processes import COMET, NAME, running_names
from support.controllers.failover_load import create_topic
from support.controllers.failover_sends import (
    Attempt,
    Kill,
    Outcome,
    Sends,
    await_sends_to,
    kill,
    outcome_of,
)
from support.runner.tiers import is_long_run, rounds

KILLS = rounds(test=1, long=5)
FAILOVER_S = 5.0
ROUTE_S = 35.0
"""The interval at which clients look for routes, an election, and the time of a request."""
PAIR = (COMET, COMET)
ALL = [JAVA_49, JAVA_53, GO, CPP]
NEW_LAST = [JAVA_53, *(pytest.param(kind, marks=pytest.mark.long) for kind in (JAVA_49, GO, CPP))]


def run(
    kind: Kind,
    brokers: Mapping[str, tuple[str, ...]],
    folder: Path,
    *,
    restarts: bool = False,
    **options: object,
) -> Outcome:
    """Kill the masters of the names in turn, under sends of one client.

    If they are restarted at once, each kill has a new client: it knows the master that is killed.
    """
    attempts: list[Attempt] = []
    kills: list[Kill] = []
    with running_names(brokers, folder, allAckInSyncStateSet=True) as clusters:
        for cluster in clusters:
            cluster.await_in_sync(len(cluster.brokers))
            create_topic(cluster)
        while len(kills) < KILLS:
            client = Client(kind, clusters[0].namesrv, folder / f"clients-{len(kills)}")
            try:
                with Sends(client, attempts, **options) as sends:
                    for _ in range(1 if restarts else KILLS):
                        cluster = clusters[len(kills) % len(clusters)]
                        old = cluster.await_master()
                        kills.append(kill(cluster, sends, restarts=restarts))
                        if is_long_run() and not restarts:
                            await_sends_to(cluster, old)
                            old.start()
                        if len(kills) < KILLS:
                            cluster.await_in_sync(len(cluster.brokers))
            finally:
                client.close()
        outcome = outcome_of(clusters[0].namesrv, attempts, kills)
    shown = ", ".join(f"{name} x {len(kinds)}" for name, kinds in brokers.items())
    outcome.report(f"{kind} {options or ''} {shown}{', restarted at once' if restarts else ''}")
    assert outcome.lost == 0, outcome
    return outcome


@pytest.mark.parametrize("kind", NEW_LAST, ids=str)
@pytest.mark.timeout(900)
def test_clients_send_to_the_other_broker_name_within_seconds(kind: Kind, tmp_path: Path) -> None:
    other = PAIR if is_long_run() else (COMET,)
    outcome = run(kind, {"broker-a": PAIR, "broker-b": other}, tmp_path)
    assert max(outcome.times.elsewhere) <= FAILOVER_S, outcome
    if kind is not GO:  # which repeats a send at queues of the same broker
        assert outcome.failed <= KILLS, outcome  # at most the one that was in flight


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL, ids=str)
@pytest.mark.timeout(900)
def test_one_broker_name_is_sent_to_again_after_the_next_look_for_routes(
    kind: Kind, tmp_path: Path
) -> None:
    outcome = run(kind, {NAME: PAIR}, tmp_path)
    assert max(outcome.times.elsewhere) <= ROUTE_S, outcome


@pytest.mark.long
@pytest.mark.timeout(900)
def test_three_brokers_of_one_name_are_no_quicker(tmp_path: Path) -> None:
    outcome = run(JAVA_53, {NAME: (COMET,) * 3}, tmp_path)
    assert max(outcome.times.elsewhere) <= ROUTE_S, outcome


@pytest.mark.long
@pytest.mark.parametrize("kind", [JAVA_49, JAVA_53], ids=str)
@pytest.mark.timeout(900)
def test_the_wait_is_the_interval_at_which_a_client_looks_for_routes(
    kind: Kind, tmp_path: Path
) -> None:
    outcome = run(kind, {NAME: PAIR}, tmp_path, poll_ms=1_000)
    assert max(outcome.times.elsewhere) <= FAILOVER_S, outcome


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL, ids=str)
@pytest.mark.timeout(900)
def test_a_killed_master_that_is_restarted_at_once_forwards_sends_within_seconds(
    kind: Kind, tmp_path: Path
) -> None:
    outcome = run(kind, {NAME: PAIR}, tmp_path, restarts=True)
    assert max(outcome.times.elsewhere) <= FAILOVER_S, outcome
