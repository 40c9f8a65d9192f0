"""Types of the settings that constructors take by name. Made by tools/generate."""

from datetime import timedelta
from pathlib import Path
from typing import Literal, TypedDict


class ConnectionOptions(TypedDict, total=False):
    """Settings of connections."""

    http_domain: str
    http_subgroup: str
    http_refresh_ms: int | timedelta
    client_ip: str
    instance_name: str
    unit_name: str
    unit_mode: bool
    namespace: str
    namespace_v2: str
    cloud: bool
    vip_channel: bool
    stream: bool
    language: Literal[
        "JAVA",
        "CPP",
        "DOTNET",
        "PYTHON",
        "DELPHI",
        "ERLANG",
        "RUBY",
        "OTHER",
        "HTTP",
        "GO",
        "PHP",
        "OMS",
        "RUST",
        "NODE_JS",
    ]
    access_key: str
    secret_key: str
    security_token: str
    key_file: Path | str | None
    use_tls: bool
    tls_file: Path | str | None
    tls_trusted: str
    tls_check_server: bool
    tls_certificate: str
    tls_key: str
    tls_key_password: str
    socks_proxies: str
    route_refresh_ms: int | timedelta
    heartbeat_ms: int | timedelta
    heartbeat_v2: bool
    heartbeat_on_connect: bool
    call_timeout_ms: int | timedelta
    idle_s: int | timedelta
    close_after_timeout: bool
    reconnect_for_go_away: bool


class ClientOptions(ConnectionOptions, total=False):
    """`ClientSettings`."""

    name_servers: str


class ProducerOnlyOptions(TypedDict, total=False):
    """`ProducerSettings`."""

    timeout_ms: int | timedelta
    try_timeout_ms: int | timedelta
    retries: int
    retries_async: int
    retry_not_stored: bool
    retry_codes: tuple[str, ...]
    compress_from_bytes: int
    compress_level: int
    compress_type: Literal["zlib", "lz4", "zstd"]
    body_bytes_max: int
    split_bytes: int
    new_topic_queues: int
    topics: tuple[str, ...]
    latency_avoidance: bool
    rocketmq_version: int
    detector: bool
    detect_timeout_ms: int | timedelta
    detect_interval_ms: int | timedelta
    back_pressure_messages: int
    back_pressure_bytes: int
    back_pressure_wait_ms: int | timedelta
    auto_batch: bool
    auto_batch_delay_ms: int | timedelta
    auto_batch_bytes: int
    auto_batch_total_bytes: int
    trace: bool
    trace_topic: str
    check_waiting_max: int
    check_concurrency: int


class ProducerOptions(ProducerOnlyOptions, ConnectionOptions, total=False):
    """`ProducerSettings` and settings of connections."""


class PushOnlyOptions(TypedDict, total=False):
    """`PushSettings`."""

    concurrency: int
    batch_max: int
    pull_batch: int
    pull_bytes: int
    pull_interval_ms: int | timedelta
    hold_ms: int | timedelta
    pull_timeout_ms: int | timedelta
    queue_messages_max: int
    queue_mib_max: int
    topic_messages_max: int
    topic_mib_max: int
    span_max: int
    retry_ms: int | timedelta
    retries_max: int
    consume_minutes_max: int | timedelta
    suspend_ms: int | timedelta
    send_filter: bool
    persist_ms: int | timedelta
    rebalance_ms: int | timedelta
    lock_ms: int | timedelta
    unlock_delay_ms: int | timedelta
    offset_folder: str
    trace: bool
    trace_topic: str
    stop_ms: int | timedelta


class PushOptions(PushOnlyOptions, ConnectionOptions, total=False):
    """`PushSettings` and settings of connections."""


class PullOnlyOptions(TypedDict, total=False):
    """`PullSettings`."""

    pull_batch: int
    hold_ms: int | timedelta
    response_margin_ms: int | timedelta
    fetched_max: int
    queue_messages_max: int
    queue_mib_max: int
    span_max: int
    retry_ms: int | timedelta
    auto_commit_ms: int | timedelta
    rebalance_ms: int | timedelta
    retries_max: int
    offset_folder: str
    trace: bool
    trace_topic: str


class PullOptions(PullOnlyOptions, ConnectionOptions, total=False):
    """`PullSettings` and settings of connections."""


class PopOnlyOptions(TypedDict, total=False):
    """`PopSettings`."""

    concurrency: int
    batch_max: int
    pop_batch: int
    invisible_ms: int | timedelta
    queue_messages_max: int
    hold_ms: int | timedelta
    response_margin_ms: int | timedelta
    ack_ms: int | timedelta
    retry_ms: int | timedelta
    retries_max: int
    assignment_ms: int | timedelta
    trace: bool
    trace_topic: str
    stop_ms: int | timedelta


class PopOptions(PopOnlyOptions, ConnectionOptions, total=False):
    """`PopSettings` and settings of connections."""


class SimpleOnlyOptions(TypedDict, total=False):
    """`SimpleSettings`."""

    invisible_ms: int | timedelta
    in_flight_max: int
    retries_max: int
    hold_ms: int | timedelta
    ack_ms: int | timedelta
    retry_ms: int | timedelta
    renew: bool
    settle_again: bool


class SimpleOptions(SimpleOnlyOptions, ConnectionOptions, total=False):
    """`SimpleSettings` and settings of connections."""


class TraceOnlyOptions(TypedDict, total=False):
    """`TraceSettings`."""

    waiting_max: int
    flush_ms: int | timedelta
    body_bytes_max: int
    timeout_ms: int | timedelta
