"""Settings of metrics, which all servers share.

Source: BrokerConfig and ControllerConfig, RocketMQ 5.3 (keys and port); the address is other than
there, where it is the broker's own one.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Final

from cometmq.model.errors import ConfigError
from cometmq.system.configuration import Configuration
from cometmq.system.settings import setting

log = logging.getLogger(__name__)

PROMETHEUS: Final = "PROM"
_LABEL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}:[^:,\n]{1,128}")
_LABELS_MAX = 20
_OF_METRICS = frozenset(
    (
        "broker",
        "broker_version",
        "boottime",
        "caddr",
        "brokerHost",
        "brokerIP",
        "broker_set",
        "cluster",
        "election_result",
        "group",
        "node_id",
        "node_type",
        "broker_name",
        "consume_mode",
        "consumer_group",
        "countOfOnlineConsumers",
        "des",
        "is_retry",
        "is_system",
        "language",
        "localaddr",
        "message_type",
        "msgModel",
        "processor",
        "protocol_type",
        "storage_medium",
        "storage_type",
        "topic",
        "version",
    )
)
"""Labels of single metrics, which no label of all metrics may repeat."""


@dataclass(frozen=True)
class MetricsSettings:
    """Whether and where a server shows its metrics."""

    exporter: str = setting(
        "DISABLE", key="metricsExporterType", choices=("DISABLE", PROMETHEUS, "OTLP_GRPC", "LOG")
    )
    """``PROM`` serves metrics for Prometheus at ``/metrics``. ``OTLP_GRPC`` and ``LOG`` of RocketMQ
    have no effect here, with a warning.
    """

    host: str = setting("", key="metricsPromExporterHost")
    """The local address to listen on. Default: 127.0.0.1, because the endpoint has no access
    control.
    """

    port: int = setting(5557, key="metricsPromExporterPort", low=0, high=65535)
    """The TCP port; 0 lets the system choose one. Each server of a machine needs its own."""

    label_text: str = setting("", key="metricsLabel")
    """Labels that every metric gets, ``name:value,name:value``."""

    series_max: int = setting(10_000, key="metricsSeriesMax", low=100, high=1_000_000)
    """Maximum number of series of each metric. The others are summed with the topic and the group
    ``_other``.
    """

    def __post_init__(self) -> None:
        """Check the labels.

        Raises:
            ConfigError: a label is not ``name:value``, or there are too many.
        """
        parts = [part for part in self.label_text.split(",") if part]
        names = {part.partition(":")[0] for part in parts}
        if (
            len(parts) > _LABELS_MAX
            or len(names) < len(parts)
            or not names.isdisjoint(_OF_METRICS)
            or not all(_LABEL.fullmatch(part) for part in parts)
        ):
            raise ConfigError(
                f"metricsLabel={self.label_text}: expected name:value,name:value, at most"
                f" {_LABELS_MAX} different names that no metric has"
            )

    @property
    def labels(self) -> dict[str, str]:
        """The labels that every metric gets."""
        parts = (part.partition(":") for part in self.label_text.split(",") if part)
        return {name: value for name, _, value in parts}


def serves_metrics(configuration: Configuration) -> bool:
    """Return whether a server has an endpoint; warn of a kind of export that does not exist."""
    if MetricsSettings not in configuration:
        return False
    exporter = configuration[MetricsSettings].exporter
    if exporter not in ("DISABLE", PROMETHEUS):
        log.warning(
            "metricsExporterType=%s has no effect, expected DISABLE or %s", exporter, PROMETHEUS
        )
    return exporter == PROMETHEUS
