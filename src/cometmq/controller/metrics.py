"""The metrics of a controller, by RocketMQ's names and labels.

Everything is read when a page is requested. RocketMQ's DLedger has no counterpart here: etcd shows
its own metrics.

Source: ControllerMetricsConstant and ControllerRequestProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from cometmq.controller.active import ActiveController
from cometmq.controller.config import ControllerSettings
from cometmq.controller.elections import Elections
from cometmq.controller.live_brokers import LiveBrokers
from cometmq.metrics.exporter import Exporter, start_exporter
from cometmq.metrics.page import Buckets, Page, buckets
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.latencies import Latencies, request_name
from cometmq.system.configuration import Configuration

FOLLOWER, LEADER = 2, 3
BOUNDS_US: Final = (
    *(1, 3, 5, 10, 30, 50, 100, 300, 500, 1_000, 3_000, 5_000, 10_000, 30_000, 50_000),
    *(100_000, 300_000, 500_000, 1_000_000, 3_000_000, 5_000_000, 10_000_000),
)
"""The upper bounds of RocketMQ's buckets of times, in microseconds."""
_FAILURES: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY)
_PREFIX: Final = "CONTROLLER_"


def request_latencies() -> Latencies:
    """Return what counts the requests of a controller."""
    return Latencies(BOUNDS_US, 1_000_000.0)


async def start_metrics(
    configuration: Configuration,
    own: tuple[str, str],
    active: ActiveController,
    live: LiveBrokers,
    elections: Elections,
    latencies: Latencies,
) -> Exporter:
    """Start to show the metrics of a controller.

    Args:
        configuration: its settings.
        own: its id and address.
        active: which controller of the group is active.
        live: the living brokers.
        elections: counts how elections ended.
        latencies: counts requests.

    Raises:
        ConfigError: its address cannot be bound, or a package is not installed.
    """

    async def collect(page: Page) -> None:
        role = page.gauge("role", f"{LEADER} for the active controller, {FOLLOWER} for others")
        role.set(LEADER if active.is_active else FOLLOWER)
        known = page.gauge("cometmq_controller_has_active", "1 if an active controller is known")
        known.set(int(active.active is not None))
        brokers = page.gauge("active_broker_num", "Living brokers")
        for (cluster, name), count in live.counts().items():
            brokers.set(count, cluster=cluster, broker_set=name)
        waiting = page.gauge(
            "cometmq_controller_waiting_sets",
            "Broker sets without a master that wait for members to be compared",
        )
        waiting.set(len(elections.waiting))
        results = page.counter("election_total", "Elections, by their result")
        for result, count in elections.results.items():
            results.set(count, election_result=result)
        _requests(page, latencies)

    id_, address = own
    labels = {
        "node_type": "controller",
        "node_id": id_,
        "address": address,
        "group": configuration[ControllerSettings].controller_group,
        "peer_id": id_,
    }

    def unready() -> str:
        return "" if active.active is not None else "no controller of the group is active"

    return await start_exporter(configuration, labels, collect, unready)


def _requests(page: Page, latencies: Latencies) -> None:
    """Show how many requests of each type there were, and how long the successful ones took."""
    totals: Counter[tuple[str, str]] = Counter()
    times: dict[str, Buckets] = {}
    for kind, histogram in latencies.all():
        name = request_name(kind.request_code).upper()
        name = name if name.startswith(_PREFIX) else _PREFIX + name
        found = buckets(histogram)
        if kind.response_code in _FAILURES:
            totals[name, "failed"] += sum(found.counts)
        else:
            totals[name, "success"] += sum(found.counts)
            times[name] = found.plus(times[name]) if name in times else found
    total = page.counter("request_total", "Requests, by type and result")
    for (name, status), count in totals.items():
        total.set(count, request_type=name, request_handle_status=status)
    took = page.histogram(
        "request_latency", "Time in microseconds of requests that succeeded", BOUNDS_US, unit="us"
    )
    for name, found in times.items():
        took.observe(found, request_type=name)
