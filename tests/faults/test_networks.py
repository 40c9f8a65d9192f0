"""Servers and clients on machines whose network, or whose processes, fail under load.

Each client and server is in a network namespace (`support.network.namespaces`). Clients of ours or
of Java send and receive while a fault begins, lasts and ends. `support.network.fault_runs` lists
what must hold then. The last test run leaves its tables in ``build/test-results``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from servers import Settings

from support.network.fault_runs import Row, run, write_table
from support.network.machines import (
    ElectedPair,
    Fault,
    Pair,
    both,
    cut,
    heal,
    kill,
    lasting,
    partition,
    stop,
    weaken,
)
from support.network.network_clients import Clients, java, ours
from support.runner.tiers import is_long_run

ELECTION_S = 25.0
"""Longer than an election takes, and than a slave that does not catch up is in the in-sync set."""
LEASE_S = 10.0
"""Longer than the lease of the active controller."""
QUICK_S = 5.0


class QuickElectedPair(ElectedPair):
    """Brokers that are taken as lost after 3 seconds instead of 15."""

    broker_settings: ClassVar[Settings] = {"controllerHeartBeatTimeoutMills": 2_000}
    controller_settings: ClassVar[Settings] = {"scanNotActiveBrokerInterval": 500}


PARTITIONED_PAIR = Fault("master and slave partitioned", partition("master", "slave"))
PARTITIONED_CLIENTS = Fault("clients and master partitioned", partition("clients", "master"))
ONE_DIRECTION = [
    Fault("slave receives nothing from the master", cut("master", "slave")),
    Fault("master receives nothing from the slave", cut("slave", "master")),
]
LINKS = [
    Fault(
        "5 % of packets lost",
        weaken("master", "clients slave", loss=0.05, delay_s=0.0, bytes_per_s=0.0),
    ),
    Fault(
        "links slow and late",
        weaken("master", "clients slave", loss=0.0, delay_s=0.05, bytes_per_s=200_000.0),
    ),
]
PAIR_FAULTS = [
    PARTITIONED_PAIR,
    *ONE_DIRECTION,
    PARTITIONED_CLIENTS,
    Fault("clients receive nothing from the master", cut("master", "clients")),
    Fault("master receives nothing from the clients", cut("clients", "master")),
    *LINKS,
    *(stop("master"), stop("slave"), kill("master"), kill("slave")),
]
LONE_MASTER = Fault(
    "master partitioned from controllers and slave", partition("master", "controllers slave")
)
PARTITIONED_MASTER = Fault("master and controllers partitioned", partition("master", "controllers"))
ISOLATED_MASTER = Fault(
    "master partitioned from all", partition("master", "clients names controllers slave")
)
PARTITIONED_ETCD = Fault("etcd and controllers partitioned", partition("etcd", "controllers"))
ELECTED_FAULTS = [
    *lasting(
        ELECTION_S,
        LONE_MASTER,
        PARTITIONED_MASTER,
        Fault("controllers receive nothing from the master", cut("master", "controllers")),
        Fault("master receives nothing from the controllers", cut("controllers", "master")),
        ISOLATED_MASTER,
        Fault("slave and controllers partitioned", partition("slave", "controllers")),
        Fault("slave partitioned from all", partition("slave", "clients names controllers master")),
        PARTITIONED_PAIR,
        *ONE_DIRECTION,
        stop("master"),
        stop("slave"),
    ),
    *lasting(
        LEASE_S,
        PARTITIONED_CLIENTS,
        *LINKS,
        kill("master"),
        kill("slave"),
        Fault("name server and brokers partitioned", partition("names", "brokers")),
        PARTITIONED_ETCD,
        Fault("active controller and etcd partitioned", partition("active", "etcd")),
        Fault("active controller partitioned from brokers", partition("active", "brokers")),
        kill("etcd"),
        kill("active"),
        Fault(
            "etcd partitioned, master killed",
            both(partition("etcd", "controllers"), kill("master").begin),
            both(heal, kill("master").end),
        ),
    ),
]
REPEATED = [
    *(
        LONE_MASTER,
        PARTITIONED_MASTER,
        ISOLATED_MASTER,
        PARTITIONED_PAIR,
        PARTITIONED_CLIENTS,
        *LINKS,
    ),
    *(stop("master"), kill("master"), kill("slave"), PARTITIONED_ETCD, kill("active")),
]
"""Faults of elected masters that are repeated with Java's clients."""
ELECTED_FAULTS_OF_JAVA = [
    fault for fault in ELECTED_FAULTS if fault.name in {one.name for one in REPEATED}
]


def cases(with_ours: list[Fault], with_java: list[Fault], short: Fault) -> list[object]:
    """Faults with each kind of clients; one of those with ours is for short runs, too."""
    return [
        pytest.param(
            clients,
            fault,
            id=f"{clients.__name__}-{fault}",
            marks=() if clients is ours and fault.name == short.name else pytest.mark.long,
        )
        for clients, faults in ((ours, with_ours), (java, with_java))
        for fault in faults
    ]


@pytest.fixture(scope="module")
def tables() -> Iterator[dict[str, list[Row]]]:
    """The rows of this run for each layout; written as tables at its end."""
    found: dict[str, list[Row]] = {"pair": [], "elected": []}
    yield found
    write_table(found["pair"], "network-faults-pair.md", "elections", "in_sync_after_s")
    write_table(found["elected"], "network-faults-elected.md")


@pytest.mark.parametrize(("clients", "fault"), cases(PAIR_FAULTS, PAIR_FAULTS, kill("master")))
def test_nothing_acknowledged_is_lost(
    clients: Clients,
    fault: Fault,
    tables: dict[str, list[Row]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    row = run(Pair, clients, fault, tmp_path, request)
    tables["pair"] += [row] if row is not None else []


@pytest.mark.needs("etcd")
@pytest.mark.promise
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("clients", "fault"), cases(ELECTED_FAULTS, ELECTED_FAULTS_OF_JAVA, LONE_MASTER)
)
def test_nothing_acknowledged_is_lost_when_masters_are_elected(
    clients: Clients,
    fault: Fault,
    tables: dict[str, list[Row]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    layout: type[ElectedPair] = ElectedPair
    if not is_long_run():
        layout, fault = QuickElectedPair, replace(fault, lasts_s=QUICK_S)
    row = run(layout, clients, fault, tmp_path, request)
    tables["elected"] += [row] if row is not None else []
