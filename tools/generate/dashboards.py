"""Makes the dashboards of ``deploy/grafana``.

Each row of a table below is a panel: its title, its unit, and its expressions with their legends.
A test compares the files with what this program writes, and the metrics with those that servers
have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.generate.root import ROOT

FOLDER = ROOT / "deploy/grafana"
WIDTH, HEIGHT = 12, 8
"""Of a panel; a row of Grafana is 24 wide."""
SOURCE = {"type": "prometheus", "uid": "${source}"}
C = 'cluster=~"$cluster"'
T = f'{C},topic=~"$topic"'
G = f'{C},consumer_group=~"$group"'
USER = 'is_system="false"'


class Panel(NamedTuple):
    """One panel: a curve for each expression and its labels."""

    title: str
    unit: str
    expressions: Sequence[tuple[str, str]]
    """PromQL, and the legend of its curves."""


class Variable(NamedTuple):
    """A choice at the top of a dashboard: the values of a label."""

    name: str
    label: str
    query: str


class Dashboard(NamedTuple):
    """One file."""

    file: str
    title: str
    variables: Sequence[Variable]
    panels: Sequence[Panel]


CLUSTER = Variable("cluster", "Cluster", "label_values(rocketmq_topic_number, cluster)")
TOPIC = Variable(
    "topic",
    "Topic",
    f"label_values(rocketmq_messages_in_total{{{C},{USER}}}, topic)",
)
GROUP = Variable(
    "group",
    "Group",
    f"label_values(rocketmq_consumer_lag_messages{{{C},{USER}}}, consumer_group)",
)


def rate(metric: str, labels: str, by: str, span: str = "5m") -> str:
    """Return the rate of a counter, added by labels."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}[{span}]))"


def quantile(share: float, metric: str, labels: str, by: str) -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{labels}}}[5m])))"


BROKERS = (
    Panel(
        "Messages stored a second",
        "short",
        [(rate("rocketmq_messages_in_total", C, "node_id"), "{{node_id}}")],
    ),
    Panel(
        "Messages delivered a second",
        "short",
        [(rate("rocketmq_messages_out_total", C, "node_id"), "{{node_id}}")],
    ),
    Panel(
        "Bytes stored a second",
        "Bps",
        [(rate("rocketmq_throughput_in_total", C, "node_id"), "{{node_id}}")],
    ),
    Panel(
        "Bytes delivered a second",
        "Bps",
        [(rate("rocketmq_throughput_out_total", C, "node_id"), "{{node_id}}")],
    ),
    Panel(
        "Latency of sends: 99 of 100",
        "ms",
        [
            (
                quantile(
                    0.99,
                    "rocketmq_rpc_latency",
                    f'{C},request_code=~"send_message|send_message_v2|send_batch_message"',
                    "node_id",
                ),
                "{{node_id}}",
            )
        ],
    ),
    Panel(
        "Latency of puts in the last minute",
        "ms",
        [
            (f"rocketmq_brokeruntime_put_latency_99{{{C}}}", "99 % {{node_id}}"),
            (f"rocketmq_brokeruntime_put_latency_999{{{C}}}", "99.9 % {{node_id}}"),
        ],
    ),
    Panel(
        "Responses that refuse a request, a second",
        "short",
        [
            (
                rate(
                    "rocketmq_rpc_latency_count",
                    f'{C},response_code!~"success|pull_not_found|pull_retry_immediately'
                    '|pull_offset_moved|query_not_found"',
                    "request_code, response_code",
                ),
                "{{request_code}} {{response_code}}",
            )
        ],
    ),
    Panel(
        "Requests that wait",
        "short",
        [(f"rocketmq_processor_watermark{{{C}}}", "{{processor}} {{node_id}}")],
    ),
    Panel(
        "Disk used",
        "percentunit",
        [(f"rocketmq_brokeruntime_commitlog_disk_ratio{{{C}}}", "{{node_id}}")],
    ),
    Panel("Size of the log", "bytes", [(f"rocketmq_storage_size{{{C}}}", "{{node_id}}")]),
    Panel(
        "Bytes not on disk, and not in the queues",
        "bytes",
        [
            (f"rocketmq_storage_flush_behind_bytes{{{C}}}", "not on disk {{node_id}}"),
            (f"rocketmq_storage_dispatch_behind_bytes{{{C}}}", "not in queues {{node_id}}"),
        ],
    ),
    Panel(
        "Age of the oldest message",
        "ms",
        [(f"rocketmq_storage_message_reserve_time{{{C}}}", "{{node_id}}")],
    ),
    Panel(
        "The store refuses messages",
        "short",
        [
            (f"cometmq_store_failed{{{C}}}", "after an error {{node_id}}"),
            (f"cometmq_store_disk_full{{{C}}}", "disk full {{node_id}}"),
        ],
    ),
    Panel(
        "Producer sessions",
        "percentunit",
        [(f"cometmq_producer_sessions_used_ratio{{{C}}}", "used part of the limit {{node_id}}")],
    ),
    Panel(
        "Pop: messages in flight, and held pops",
        "short",
        [
            (f"cometmq_pop_in_flight_messages{{{C}}}", "in flight {{node_id}}"),
            (f"cometmq_pop_held{{{C}}}", "held pops {{node_id}}"),
        ],
    ),
    Panel(
        "Pop: by how much messages are redelivered late",
        "ms",
        [
            (f"cometmq_pop_revive_behind_ms{{{C}}}", "first one that waits {{node_id}}"),
            (f"cometmq_pop_revive_late_ms{{{C}}}", "last one {{node_id}}"),
        ],
    ),
    Panel(
        "Pop: acknowledged, redelivered and dropped a second",
        "short",
        [
            (
                rate(f"cometmq_pop_{name}_messages_total", C, "node_id"),
                f"{text} {{{{node_id}}}}",
            )
            for name, text in (
                ("acknowledged", "acknowledged"),
                ("revived", "redelivered"),
                ("dropped", "dropped"),
            )
        ],
    ),
    Panel(
        "Timer messages: those that wait, and by how many seconds they are late",
        "short",
        [
            (f"rocketmq_timer_dequeue_lag{{{C}}}", "wait {{node_id}}"),
            (f"rocketmq_timer_dequeue_latency{{{C}}}", "seconds late {{node_id}}"),
        ],
    ),
    Panel(
        "Topics and groups",
        "short",
        [
            (f"rocketmq_topic_number{{{C}}}", "topics {{node_id}}"),
            (f"rocketmq_consumer_group_number{{{C}}}", "groups {{node_id}}"),
        ],
    ),
)
TOPICS = (
    Panel(
        "Messages stored a second: the ten largest topics",
        "short",
        [(f"topk(10, {rate('rocketmq_messages_in_total', f'{T},{USER}', 'topic')})", "{{topic}}")],
    ),
    Panel(
        "Messages delivered a second: the ten largest groups",
        "short",
        [
            (
                f"topk(10, {rate('rocketmq_messages_out_total', f'{G},{USER}', 'consumer_group')})",
                "{{consumer_group}}",
            )
        ],
    ),
    Panel(
        "Lag: the ten largest",
        "short",
        [
            (
                "topk(10, sum by (consumer_group, topic)"
                f" (rocketmq_consumer_lag_messages{{{G},{USER}}}))",
                "{{consumer_group}} {{topic}}",
            )
        ],
    ),
    Panel(
        "Age of the oldest message not consumed: the ten largest",
        "ms",
        [
            (
                "topk(10, max by (consumer_group, topic)"
                f" (rocketmq_consumer_lag_latency{{{G},{USER}}}))",
                "{{consumer_group}} {{topic}}",
            )
        ],
    ),
    Panel(
        "In flight: delivered or popped, but not consumed",
        "short",
        [
            (
                "topk(10, sum by (consumer_group, topic)"
                f" (rocketmq_consumer_inflight_messages{{{G},{USER}}}))",
                "{{consumer_group}} {{topic}}",
            )
        ],
    ),
    Panel(
        "Ready: not delivered",
        "short",
        [
            (
                "topk(10, sum by (consumer_group, topic)"
                f" (rocketmq_consumer_ready_messages{{{G},{USER}}}))",
                "{{consumer_group}} {{topic}}",
            )
        ],
    ),
    Panel(
        "Sent back in the last minute, and dead-lettered in 10 minutes",
        "short",
        [
            (
                f"sum by (group) (rocketmq_send_back_nums{{{C}}})",
                "sent back {{group}}",
            ),
            (
                "sum by (consumer_group)"
                f" (increase(rocketmq_send_to_dlq_messages_total{{{G}}}[10m]))",
                "dead {{consumer_group}}",
            ),
        ],
    ),
    Panel(
        "Size of messages: 99 of 100",
        "bytes",
        [
            (
                quantile(0.99, "rocketmq_message_size", f"{T},{USER}", "topic"),
                "{{topic}}",
            )
        ],
    ),
    Panel(
        "Transactions decided a second",
        "short",
        [
            (rate("rocketmq_commit_messages_total", T, "topic"), "committed {{topic}}"),
            (rate("rocketmq_rollback_messages_total", T, "topic"), "rolled back {{topic}}"),
        ],
    ),
    Panel(
        "Transactions undecided, and seconds until a commit: 99 of 100",
        "short",
        [
            (f"rocketmq_half_messages{{{C}}}", "undecided {{node_id}}"),
            (quantile(0.99, "rocketmq_finish_message_latency", T, "topic"), "seconds {{topic}}"),
        ],
    ),
)
REPLICATION = (
    Panel(
        "Masters",
        "short",
        [(f"sum by (cluster) (cometmq_broker_is_master{{{C}}})", "{{cluster}}")],
    ),
    Panel(
        "Broker names without a master",
        "short",
        [
            (
                f"max by (cluster) (cometmq_namesrv_broker_names_without_master{{{C}}})",
                "{{cluster}}",
            )
        ],
    ),
    Panel(
        "Bytes of the log that a slave lacks",
        "bytes",
        [(f"rocketmq_broker_commitlog_diff{{{C}}}", "{{broker}} {{brokerIP}}")],
    ),
    Panel(
        "Slaves that have the newest of the log",
        "short",
        [(f"sum by (broker) (cometmq_slave_in_sync{{{C}}})", "{{broker}}")],
    ),
    Panel(
        "Slaves that receive from their master",
        "short",
        [(f"cometmq_slave_has_master{{{C}}}", "{{instance}} {{node_id}}")],
    ),
    Panel(
        "Brokers registered at name servers, and living for the controller",
        "short",
        [
            (f"max by (cluster) (cometmq_namesrv_brokers{{{C}}})", "registered {{cluster}}"),
            (f"sum by (cluster) (active_broker_num{{{C}}})", "controller {{cluster}}"),
        ],
    ),
    Panel(
        "Active controllers of a group",
        "short",
        [
            ("sum by (group) (role == bool 3)", "active {{group}}"),
            ("max by (group) (cometmq_controller_has_active)", "known {{group}}"),
        ],
    ),
    Panel(
        "Elections in 10 minutes",
        "short",
        [
            (
                "sum by (election_result) (increase(election_total[10m]))",
                "{{election_result}}",
            )
        ],
    ),
    Panel(
        "Requests to controllers a second",
        "short",
        [
            (
                "sum by (request_type, request_handle_status) (rate(request_total[5m]))",
                "{{request_type}} {{request_handle_status}}",
            )
        ],
    ),
    Panel(
        "Latency of controllers: 99 of 100",
        "µs",
        [
            (
                "histogram_quantile(0.99, sum by (request_type, le)"
                " (rate(request_latency_bucket[5m])))",
                "{{request_type}}",
            )
        ],
    ),
)
CLIENTS = (
    Panel(
        "Producers",
        "short",
        [
            (
                f"sum by (language, version) (rocketmq_producer_connections{{{C}}})",
                "{{language}} {{version}}",
            )
        ],
    ),
    Panel(
        "Consumers",
        "short",
        [
            (
                f"sum by (language, version) (rocketmq_consumer_connections{{{C}}})",
                "{{language}} {{version}}",
            )
        ],
    ),
    Panel(
        "Producers of a group",
        "short",
        [(f"max by (group) (rocketmq_producer_count{{{C}}})", "{{group}}")],
    ),
    Panel(
        "Consumers of a group",
        "short",
        [(f"max by (group) (rocketmq_group_count{{{C}}})", "{{group}}")],
    ),
    Panel(
        "Requests a second",
        "short",
        [
            (
                rate("rocketmq_rpc_latency_count", C, "request_code"),
                "{{request_code}}",
            )
        ],
    ),
    Panel(
        "Latency by request: 99 of 100, without held pulls",
        "ms",
        [
            (
                quantile(
                    0.99, "rocketmq_rpc_latency", f'{C},is_long_polling="false"', "request_code"
                ),
                "{{request_code}}",
            )
        ],
    ),
    Panel(
        "Responses that no client waited for, a second",
        "short",
        [
            (
                rate("rocketmq_rpc_latency_count", f'{C},result="write_channel_failed"', "node_id"),
                "{{node_id}}",
            )
        ],
    ),
    Panel(
        "Topics and groups created or changed in 10 minutes",
        "short",
        [
            (
                "sum by (invocation_status)"
                f" (increase(rocketmq_topic_create_execution_time_count{{{C}}}[10m]))",
                "topics {{invocation_status}}",
            ),
            (
                "sum by (invocation_status)"
                f" (increase(rocketmq_consumer_group_create_execution_time_count{{{C}}}[10m]))",
                "groups {{invocation_status}}",
            ),
        ],
    ),
)
DASHBOARDS = (
    Dashboard("brokers.json", "CometMQ brokers", (CLUSTER,), BROKERS),
    Dashboard(
        "topics-and-groups.json", "CometMQ topics and groups", (CLUSTER, TOPIC, GROUP), TOPICS
    ),
    Dashboard("replication.json", "CometMQ replication and failover", (CLUSTER,), REPLICATION),
    Dashboard("clients.json", "CometMQ clients", (CLUSTER,), CLIENTS),
)


def text_of(dashboard: Dashboard) -> str:
    """Return the text of a dashboard's file."""
    content = {
        "title": dashboard.title,
        "uid": f"cometmq-{dashboard.file.removesuffix('.json')}",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "tags": ["cometmq"],
        "templating": {"list": [_source(), *map(_variable, dashboard.variables)]},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": variable.query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 24 // WIDTH)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": row * HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.expressions)
        ],
    }


def files() -> Iterator[tuple[Path, str]]:
    """Each dashboard."""
    for dashboard in DASHBOARDS:
        yield FOLDER / dashboard.file, text_of(dashboard)
