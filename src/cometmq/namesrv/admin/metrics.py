"""The metrics of a name server; RocketMQ's name server has none.

Everything is read when a page is asked for.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cometmq.metrics.exporter import Exporter, start_exporter
from cometmq.metrics.page import Page
from cometmq.remoting.slices import Slices

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core

MASTER_ID = 0


async def start_metrics(core: Core, address: str) -> Exporter:
    """Start to show the metrics of a name server.

    Raises:
        ConfigError: its address cannot be bound, or a package is not installed.
    """
    registry = core.registry

    async def collect(page: Page) -> None:
        slices = Slices()
        page.gauge("cometmq_namesrv_topics", "Topics with a route").set(len(registry.topics))
        living = Counter(key.cluster for key in registry.live)
        masterless: Counter[str] = Counter()
        async for group in slices.each(list(registry.groups.values())):
            masterless[group.cluster] += MASTER_ID not in group.addresses
        brokers = page.gauge("cometmq_namesrv_brokers", "Brokers that are registered and alive")
        without = page.gauge(
            "cometmq_namesrv_broker_names_without_master", "Broker names of which no master lives"
        )
        for cluster in list(registry.clusters):
            brokers.set(living[cluster], cluster=cluster)
            without.set(masterless[cluster], cluster=cluster)

    labels = {"node_type": "namesrv", "node_id": address}
    return await start_exporter(core.configuration, labels, collect)
