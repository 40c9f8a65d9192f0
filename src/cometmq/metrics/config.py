"""Settings of metrics, which all servers share.

Source: BrokerConfig and ControllerConfig, RocketMQ 5.3 (keys and port); the address is other than
there, where it is the broker's own one.
"""

from __future__ import annotations

import re
from typing import Final

from cometmq.model.errors import ConfigError
from cometmq.system.configuration import Configuration
from cometmq.system.settings import ADDRESS, setting, settings_class

DISABLED, PROMETHEUS, OTLP, LOG = "DISABLE", "PROM", "OTLP_GRPC", "LOG"
_TARGET: Final = re.compile(r"(?:(https?)://)?(" + ADDRESS.pattern + ")/?")
_HEADER: Final = re.compile(r"[0-9a-z_.-]{1,64}:[ -+\--~]{1,4096}")
_HEADERS_MAX = 20
_LABEL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}:[^:,\n]{1,128}")
_LABELS_MAX = 20
_LABELS_OF_METRICS = frozenset(
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
        "invocation_status",
        "is_long_polling",
        "le",
        "request_code",
        "request_handle_status",
        "request_type",
        "response_code",
        "result",
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
        "job",
        "language",
        "localaddr",
        "message_type",
        "msgModel",
        "processor",
        "query",
        "protocol_type",
        "storage_medium",
        "storage_type",
        "topic",
        "version",
    )
)
"""Labels of single metrics, which no label of all metrics may repeat."""


@settings_class
class MetricsSettings:
    """Whether and where a server shows its metrics."""

    exporter: str = setting(
        DISABLED, key="metricsExporterType", choices=(DISABLED, PROMETHEUS, OTLP, LOG)
    )
    """``PROM`` serves metrics for Prometheus at ``/metrics``, and the state of the server at
    ``/live`` and ``/ready``; ``OTLP_GRPC`` sends them to an
    OpenTelemetry collector, ``LOG`` logs them.
    """

    grpc_target: str = setting("", key="metricsGrpcExporterTarget")
    """The collector, ``host:port``. ``http://host:port`` is without TLS, everything else with it.
    """

    grpc_header_text: str = setting("", key="metricsGrpcExporterHeader", secret=True)
    """Headers of each request to the collector, ``name:value,name:value``."""

    grpc_timeout_ms: int = setting(
        3_000, key="metricGrpcExporterTimeOutInMills", unit="ms", low=100, high=60_000
    )
    """How long one request to the collector may take."""

    grpc_interval_ms: int = setting(
        60_000, key="metricGrpcExporterIntervalInMills", unit="ms", low=1_000, high=3_600_000
    )
    """The time between two pages that are sent to the collector."""

    log_interval_ms: int = setting(
        10_000, key="metricLoggingExporterIntervalInMills", unit="ms", low=1_000, high=3_600_000
    )
    """The time between two pages in the log."""

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

    metrics_of_exporter: bool = setting(True)
    """Whether a broker also shows the metrics of RocketMQ's exporter, by its names. A page of many
    topics takes about twice the time with them.
    """

    def __post_init__(self) -> None:
        """Check labels, collector and headers.

        Raises:
            ConfigError: a label or a header is not ``name:value``, there are too many, or the
                address of the collector is missing or wrong.
        """
        if self.exporter == OTLP and not _TARGET.fullmatch(self.grpc_target):
            raise ConfigError(
                f"metricsGrpcExporterTarget={self.grpc_target}: metricsExporterType={OTLP} needs"
                " the address of a collector, host:port or http://host:port"
            )
        headers = [part for part in self.grpc_header_text.split(",") if part]
        is_wrong = len(headers) > _HEADERS_MAX or not all(map(_HEADER.fullmatch, headers))
        if self.exporter == OTLP and is_wrong:
            raise ConfigError(
                "metricsGrpcExporterHeader: expected name:value,name:value, names in lower case, at"
                f" most {_HEADERS_MAX}"
            )
        parts = [part for part in self.label_text.split(",") if part]
        names = {part.partition(":")[0] for part in parts}
        if (
            len(parts) > _LABELS_MAX
            or len(names) < len(parts)
            or not names.isdisjoint(_LABELS_OF_METRICS)
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

    @property
    def grpc_address(self) -> tuple[bool, str]:
        """Whether the connection to the collector has TLS, and the collector's address."""
        found = _TARGET.fullmatch(self.grpc_target)
        assert found is not None
        return found[1] != "http", found[2]

    @property
    def grpc_headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of each request to the collector."""
        parts = (part.partition(":") for part in self.grpc_header_text.split(",") if part)
        return tuple((name, value) for name, _, value in parts)


def has_metrics(configuration: Configuration) -> bool:
    """Return whether a server shows metrics."""
    if MetricsSettings not in configuration:
        return False
    return configuration[MetricsSettings].exporter != DISABLED
