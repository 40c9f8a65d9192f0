"""Starts what shows the metrics of a server: an endpoint, or pages to the log or a collector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cometmq.metrics.config import LOG, OTLP, MetricsSettings
from cometmq.metrics.page import Collect
from cometmq.system.configuration import Configuration


class Exporter(Protocol):
    """Shows the metrics of a server from `start` to `stop`."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""


async def start_exporter(
    configuration: Configuration,
    labels: dict[str, str],
    collect: Collect,
    unready: Callable[[], str] = lambda: "",
) -> Exporter:
    """Start what shows the metrics of a server; put the port of an endpoint into the settings.

    Args:
        configuration: of the server.
        labels: the labels of every metric beside those of the settings.
        collect: fills a page.
        unready: returns why the server is not ready, for the endpoint; empty if it is.

    Raises:
        ConfigError: the endpoint's address cannot be bound, or a package is not installed.
    """
    settings = configuration[MetricsSettings]
    exporter: Exporter
    if settings.exporter == LOG:
        from cometmq.metrics.push import LogPush

        exporter = LogPush(settings, labels | settings.labels, collect)
    elif settings.exporter == OTLP:
        from cometmq.metrics.otlp import OtlpPush  # loads gRPC

        exporter = OtlpPush(settings, labels | settings.labels, collect)
    else:
        from cometmq.metrics.endpoint import MetricsEndpoint

        endpoint = MetricsEndpoint(settings, labels, collect, unready)
        await endpoint.start()
        if settings.port == 0:
            configuration.set({"metricsPromExporterPort": str(endpoint.port)})
        return endpoint
    await exporter.start()
    return exporter
