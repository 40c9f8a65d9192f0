"""The metrics of a controller, by RocketMQ's names and labels.

Everything is read when a page is asked for; requests and RocketMQ's DLedger are not counted.

Source: ControllerMetricsConstant, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.controller.active import ActiveController
from cometmq.controller.config import ControllerSettings
from cometmq.controller.elections import Elections
from cometmq.controller.live_brokers import LiveBrokers
from cometmq.metrics.endpoint import MetricsEndpoint, start_endpoint
from cometmq.metrics.page import Page
from cometmq.system.configuration import Configuration

FOLLOWER, LEADER = 2, 3


async def start_metrics(
    configuration: Configuration,
    own: tuple[str, str],
    active: ActiveController,
    live: LiveBrokers,
    elections: Elections,
) -> MetricsEndpoint:
    """Start the endpoint of a controller.

    Args:
        configuration: its settings.
        own: its id and address.
        active: which controller of the group is active.
        live: the living brokers.
        elections: counts how elections ended.

    Raises:
        ConfigError: the endpoint's address cannot be bound.
    """

    async def collect(page: Page) -> None:
        role = page.gauge("role", f"{LEADER} for the active controller, {FOLLOWER} for others")
        role.set(LEADER if active.is_active else FOLLOWER)
        known = page.gauge("cometmq_controller_has_active", "1 if an active controller is known")
        known.set(int(active.active is not None))
        brokers = page.gauge("active_broker_num", "Living brokers")
        for (cluster, name), count in live.counts().items():
            brokers.set(count, cluster=cluster, broker_set=name)
        results = page.counter("election_total", "Elections, by their result")
        for result, count in elections.results.items():
            results.set(count, election_result=result)

    id_, address = own
    labels = {
        "node_type": "controller",
        "node_id": id_,
        "address": address,
        "group": configuration[ControllerSettings].controller_group,
        "peer_id": id_,
    }
    return await start_endpoint(configuration, labels, collect)
