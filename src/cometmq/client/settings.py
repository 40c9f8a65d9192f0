"""The settings of clients, producers and consumers, and where their values come from.

The first source that names a setting decides; a setting without a source has its default.

    keyword       ``Producer(..., retries=0)``
    object        ``ProducerSettings(retries=0)``
    environment   ``COMETMQ_PRODUCER_RETRIES=0``, and RocketMQ's own variables such as NAMESRV_ADDR
    TOML          ``[producer]`` and ``retries = 0`` in the file that COMETMQ_CONFIG names

A time takes a number in the unit of its name, or a `timedelta` in a program.

The defaults are RocketMQ's: ClientConfig, DefaultMQProducer, DefaultMQPushConsumer and
DefaultLitePullConsumer, RocketMQ 5.3."""

from __future__ import annotations

import difflib
import functools
import os
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Unpack

import msgspec

from cometmq.model.errors import ConfigError
from cometmq.model.flags import SysFlag
from cometmq.protocol.codes import LanguageCode, ResponseCode
from cometmq.system.settings import Setting, describe, setting

if TYPE_CHECKING:
    from cometmq.client import options

__all__ = [
    "ClientSettings",
    "ProducerSettings",
    "PushSettings",
    "PullSettings",
    "PopSettings",
    "SimpleSettings",
    "TraceSettings",
]

KIB = 1024
MIB = 1024 * KIB


@functools.cache
def _described(kind: type) -> tuple[Setting, ...]:
    return tuple(msgspec.structs.replace(setting, key=setting.name) for setting in describe(kind))


def described(kind: type) -> tuple[Setting, ...]:
    """Return the settings of a class, each with the name that programs use as its key."""
    return _described(kind)


TIME_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "min": timedelta(minutes=1),
}


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Settings that are made in programs, and so are checked when they are made.

    Each kind declares its constructor for type checkers, with the types of ``options.py``: there a
    time may be a `timedelta`, while the field is a number.
    """

    section: ClassVar[str]
    """Their table in a TOML file, and a part of the names of their environment variables."""

    given: ClassVar[frozenset[str]] = frozenset()
    """The names of the settings that were passed, even if with the value of the default."""

    def __new__(cls, **named: Any) -> Self:
        """Remember which settings were passed, since those win over files and environment.

        Raises:
            ConfigError: there is no setting of a name; says which is meant.
        """
        _refuse_unknown(named, cls, cls.__name__)
        made = super().__new__(cls)
        object.__setattr__(made, "given", frozenset(named))
        return made

    def __post_init__(self) -> None:
        """Check every value, and convert times to numbers.

        Raises:
            ConfigError: one is of a wrong type or out of its range; says which, and what was
                expected.
        """
        kind: type = type(self)
        for known in described(kind):
            object.__setattr__(self, known.name, _checked(known, getattr(self, known.name)))


def _checked(known: Setting, value: Any) -> Any:
    """Return the value of a setting, a time as a number.

    Raises:
        ConfigError: it has the wrong type or is out of range.
    """
    unit = TIME_UNITS.get(known.unit)
    met = repr(value)
    if known.kind is Path and isinstance(value, str) and value:
        value = Path(value)
    elif typing.get_origin(known.kind) is tuple and isinstance(value, list):
        value = tuple(value)
    if isinstance(value, timedelta) and unit is not None:
        whole, rest = divmod(value, unit)
        met, value = str(value), value if rest else whole
    if not (known.optional and value is None) and not _has_type(known.kind, value):
        met = "(hidden)" if known.secret else met
        several = typing.get_origin(known.kind) is tuple
        expected = "a list or a tuple of texts" if several else known.expectation
        or_time = " or a timedelta of whole units" if unit else ""
        raise ConfigError(f"{known.name}={met}: expected {expected}{or_time}")
    known.parse(known.render(value))
    return value


def _has_type(kind: Any, value: Any) -> bool:
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


@dataclass(frozen=True, kw_only=True)
class ClientSettings(Checked):
    """Settings shared by producers, consumers and the admin client."""

    section: ClassVar[str] = "client"

    if TYPE_CHECKING:

        def __init__(self, **named: Unpack[options.ClientOptions]) -> None: ...

    name_servers: str = setting("", key="namesrvAddr", environment="NAMESRV_ADDR")
    """``host:port;host:port``. If empty, the client fetches the list from ``http_domain``; if that
    is empty, too, it uses ``127.0.0.1:9876``."""

    http_domain: str = setting("", key="rocketmq.namesrv.domain")
    """Host, or ``host:port``, of the HTTP endpoint for name server addresses. It is used if no name
    server is set; empty means no endpoint. RocketMQ's clients use ``jmenv.tbsite.net``."""

    http_subgroup: str = setting("nsaddr", key="rocketmq.namesrv.domain.subgroup")
    """Last part of the endpoint's path, below ``/rocketmq/``."""

    http_refresh_ms: int = setting(120_000, unit="ms", low=100)
    """Interval at which the endpoint is read again."""

    client_ip: str = setting("", key="clientIP")
    """First part of the client id; empty means the address of this machine's outgoing interface."""

    instance_name: str = setting("DEFAULT", key="instanceName")
    """Second part of the client id. ``DEFAULT`` becomes the process id and a unique number, except
    for ``broadcast``.
    """

    unit_name: str = setting("", key="unitName")
    """Name of a unit of a larger deployment; part of the client id and of the HTTP address."""

    unit_mode: bool = setting(False, key="unitMode")
    """Whether consumers and messages are marked as belonging to a unit."""

    namespace: str = setting("", key="namespace")
    """Prefix of each topic and group on the wire, as in clients of RocketMQ 4."""

    namespace_v2: str = setting("", key="namespaceV2")
    """Namespace field of each request, as in clients of RocketMQ 5; names do not change."""

    cloud: bool = setting(False)
    """Whether the servers are a cloud service; it changes the format and the topic of traces."""

    vip_channel: bool = setting(False, key="com.rocketmq.sendMessageWithVIPChannel")
    """Whether sends use the broker's second port, two below its first."""

    stream: bool = setting(False, key="enableStreamRequestType")
    """Whether requests and the client id have the stream mark. Pull consumers set it by default."""

    language: str = setting("PYTHON", choices=tuple(LanguageCode.__members__))
    """The client language in each request."""

    access_key: str = setting("", key="accessKey")
    """Account name for signed requests; empty does not sign."""

    secret_key: str = setting("", key="secretKey", secret=True)
    """The account's secret, which makes the signature and is never sent."""

    security_token: str = setting("", key="securityToken", secret=True)
    """Token of a temporary account."""

    key_file: Path | None = setting(None, key="rocketmq.client.keyFile")
    """Properties file with ``AccessKey``, ``SecretKey`` and ``SecurityToken``."""

    use_tls: bool = setting(False, key="tls.enable")
    """Whether connections to all servers use TLS."""

    tls_file: Path | None = setting(None, key="tls.config.file")
    """Properties file with ``tls.client`` keys, for TLS settings that are not set otherwise."""

    tls_trusted: str = setting("", key="tls.client.trustCertPath")
    """PEM file of the authorities that servers' certificates are checked against."""

    tls_check_server: bool = setting(False, key="tls.client.authServer")
    """Whether servers' certificates are checked; always if ``tls_trusted`` is set."""

    tls_certificate: str = setting("", key="tls.client.certPath")
    """PEM file of the client's certificate chain; empty for none."""

    tls_key: str = setting("", key="tls.client.keyPath")
    """PEM file of the certificate's private key."""

    tls_key_password: str = setting("", key="tls.client.keyPassword", secret=True)
    """Password of the private key."""

    socks_proxies: str = setting("", key="socksProxyConfig", secret=True)
    """JSON, network to proxy: ``{"10.0.0.0/8": {"addr": "proxy:1080", "username": "me"}}``."""

    route_refresh_ms: int = setting(30_000, key="pollNameServerInterval", unit="ms", low=10)
    """Interval at which the routes of all used topics are fetched again."""

    heartbeat_ms: int = setting(30_000, key="heartbeatBrokerInterval", unit="ms", low=10)
    """Interval of heartbeats to each broker; a broker removes a client after 120 s without one."""

    heartbeat_v2: bool = setting(False, key="useHeartbeatV2")
    """Whether heartbeats omit subscriptions that the broker already has."""

    heartbeat_on_connect: bool = setting(True, key="enableHeartbeatChannelEventListener")
    """Whether each new connection to a broker starts with a heartbeat."""

    call_timeout_ms: int = setting(3_000, key="mqClientApiTimeout", unit="ms", low=1)
    """Timeout of one background request: routes, heartbeats, offsets."""

    idle_s: int = setting(
        120, key="com.rocketmq.remoting.client.channel.maxIdleTimeSeconds", unit="s", low=1
    )
    """Time after which an idle connection is closed. A connection with requests in flight is not
    idle."""

    close_after_timeout: bool = setting(
        True, key="com.rocketmq.remoting.client.closeSocketIfTimeout"
    )
    """Whether a connection is closed if a request timed out and no data arrived meanwhile."""

    reconnect_for_go_away: bool = setting(True, key="enableReconnectForGoAway")
    """Whether a request is sent once more, on a new connection, if a server shuts down."""


COMPRESSIONS = {"zlib": SysFlag.ZLIB, "lz4": SysFlag.LZ4, "zstd": SysFlag.ZSTD}

RETRIED = (
    "SYSTEM_ERROR",
    "SYSTEM_BUSY",
    "SERVICE_NOT_AVAILABLE",
    "NO_PERMISSION",
    "TOPIC_NOT_EXIST",
    "NO_BUYER_ID",
    "NOT_IN_CURRENT_UNIT",
    "GO_AWAY",
)


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(Checked):
    """Settings of a producer."""

    section: ClassVar[str] = "producer"

    if TYPE_CHECKING:

        def __init__(self, **named: Unpack[options.ProducerOnlyOptions]) -> None: ...

    timeout_ms: int = setting(3_000, key="sendMsgTimeout", unit="ms", low=1)
    """Timeout of a whole send with its retries, if the call sets none."""

    try_timeout_ms: int = setting(-1, key="sendMsgMaxTimeoutPerRequest", unit="ms", low=-1)
    """Timeout of one attempt of a send; -1 for all of the remaining time."""

    retries: int = setting(2, key="retryTimesWhenSendFailed", low=0, high=16)
    """Retries after the first attempt failed, on other brokers if there are any. When each broker
    has failed, a retry pauses first. A broker that cannot be reached, or is stopping, is waited for
    until the timeout and uses up no retry."""

    retries_async: int = setting(2, key="retryTimesWhenSendAsyncFailed", low=0, high=16)
    """Retries of `Producer.send_soon` and `Producer.send_nowait`, which retry only after
    network failures, also with a chosen queue or an order key."""

    retry_not_stored: bool = setting(False, key="retryAnotherBrokerWhenNotStoreOK")
    """Whether a message with a status other than ``SEND_OK`` is sent to another broker too."""

    retry_codes: tuple[str, ...] = setting(RETRIED, key="retryResponseCodes")
    """Response codes, by name or number, after which the send is retried on another broker."""

    compress_from_bytes: int = setting(4_096, key="compressMsgBodyOverHowmuch", unit="bytes", low=0)
    """Bodies of this size and above are compressed; batches are not."""

    compress_level: int = setting(5, key="compressLevel", low=0, high=9)
    """Compression level: 1 is fastest, 9 is smallest, 0 does not compress."""

    compress_type: str = setting("zlib", key="compressType", choices=tuple(COMPRESSIONS))
    """Compression; lz4 and zstd need the packages ``lz4`` and ``zstandard`` on both sides."""

    body_bytes_max: int = setting(4 * MIB, key="maxMessageSize", unit="bytes", low=1)
    """Largest body of a message, or of a whole encoded batch."""

    split_bytes: int = setting(1_000_000, unit="bytes", low=1)
    """Size at which `Producer.send_all` starts the next batch, by an estimate of the encoded
    size."""

    new_topic_queues: int = setting(4, key="defaultTopicQueueNums", low=1, high=1024)
    """Number of queues of a topic that the broker creates on a send of this producer."""

    topics: tuple[str, ...] = setting(())
    """Topics whose routes are fetched at the start, before the first send."""

    latency_avoidance: bool = setting(False, key="sendLatencyEnable")
    """Whether sends avoid brokers that were slow or failed recently."""

    rocketmq_version: int = setting(5, low=4, high=5)
    """The release of RocketMQ whose limits and pauses apply: 4 as in RocketMQ 4.9, 5 as in 5.x."""

    detector: bool = setting(False, key="startDetectorEnable")
    """Whether avoided brokers are probed, and used again as soon as they respond."""

    detect_timeout_ms: int = setting(200, key="detectTimeout", unit="ms", low=1)
    """Timeout of a probe."""

    detect_interval_ms: int = setting(2_000, key="detectInterval", unit="ms", low=10)
    """Interval of probes of an avoided broker."""

    back_pressure_messages: int = setting(1_024, key="backPressureForAsyncSendNum", low=10)
    """Limit on sends in flight, with their retries; a batch is one. Other sends wait for room."""

    back_pressure_bytes: int = setting(
        100 * MIB, key="backPressureForAsyncSendSize", unit="bytes", low=MIB
    )
    """Limit on bytes of bodies in flight. A larger message is sent alone."""

    back_pressure_wait_ms: int = setting(60_000, unit="ms", low=1)
    """How long a send waits for room, if the call sets no timeout. The time of the send begins
    after that."""

    auto_batch: bool = setting(False, key="autoBatch")
    """Whether single sends are combined into batches."""

    auto_batch_delay_ms: int = setting(10, key="batchMaxDelayMs", unit="ms", low=1, high=30_000)
    """How long a message may wait for other messages of its batch."""

    auto_batch_bytes: int = setting(
        32 * KIB, key="batchMaxBytes", unit="bytes", low=1, high=2 * MIB
    )
    """A batch is sent at once when its bodies are larger than this."""

    auto_batch_total_bytes: int = setting(32 * MIB, key="totalBatchMaxBytes", unit="bytes", low=1)
    """Limit on waiting bytes; above it messages are sent one by one."""

    trace: bool = setting(False, key="enableTrace")
    """Whether each stored message is recorded in the trace topic."""

    trace_topic: str = setting("", key="traceTopic")
    """Topic of the traces; empty for RocketMQ's trace topic."""

    check_waiting_max: int = setting(2_000, key="checkRequestHoldMax", low=1)
    """Limit on transaction checks that wait for the listener."""

    check_concurrency: int = setting(1, key="checkThreadPoolMaxSize", low=1, high=1000)
    """Number of transaction checks that the listener runs at a time."""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: one is out of its range; says which, and what was expected.
        """
        super().__post_init__()
        _ = self.retried

    @property
    def retried(self) -> frozenset[int]:
        """The codes of ``retry_codes``.

        Raises:
            ConfigError: one of them is neither a name nor a number.
        """
        return frozenset(map(_response_code, self.retry_codes))

    @property
    def compression(self) -> int:
        """The bits of a message's flag that name the compressor."""
        return COMPRESSIONS[self.compress_type]


def _response_code(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return ResponseCode[text]
    except KeyError:
        raise ConfigError(
            f"retry_codes: {text!r} expected the name of a response code or a number"
        ) from None


UNLIMITED = -1


@dataclass(frozen=True, kw_only=True)
class PushSettings(Checked):
    """Settings of a push consumer."""

    section: ClassVar[str] = "push"

    if TYPE_CHECKING:

        def __init__(self, **named: Unpack[options.PushOnlyOptions]) -> None: ...

    concurrency: int = setting(20, key="consumeThreadMax", low=1, high=1000)
    """Number of handler calls that run at a time, over all queues."""

    batch_max: int = setting(1, key="consumeMessageBatchMaxSize", low=1, high=1024)
    """Limit on messages in one call of a batch handler."""

    pull_batch: int = setting(32, key="pullBatchSize", low=1, high=1024)
    """Messages per pull; RocketMQ returns at most 32 messages at once."""

    pull_bytes: int = setting(256 * KIB, key="pullBatchSizeInBytes", unit="bytes", low=1)
    """Bytes per pull; brokers before 5.0 ignore it."""

    pull_interval_ms: int = setting(0, key="pullInterval", unit="ms", low=0, high=65_535)
    """Pause between two pulls of a queue."""

    hold_ms: int = setting(15_000, unit="ms", low=0, high=120_000)
    """How long a broker holds a pull while the queue has no new message."""

    pull_timeout_ms: int = setting(30_000, unit="ms", low=100)
    """Timeout of a pull, including the time for which the broker holds it."""

    queue_messages_max: int = setting(1_000, key="pullThresholdForQueue", low=1, high=65_535)
    """Limit on fetched and not consumed messages of one queue; above it the queue is not pulled."""

    queue_mib_max: int = setting(100, key="pullThresholdSizeForQueue", unit="MiB", low=1, high=1024)
    """Limit on the size of the fetched and not consumed messages of one queue."""

    topic_messages_max: int = setting(
        UNLIMITED, key="pullThresholdForTopic", low=UNLIMITED, high=6_553_500
    )
    """Limit on fetched and not consumed messages of a topic, divided among its assigned queues; -1
    for none."""

    topic_mib_max: int = setting(
        UNLIMITED, key="pullThresholdSizeForTopic", unit="MiB", low=UNLIMITED, high=102_400
    )
    """Limit on the size of the fetched and not consumed messages of a topic, divided among its
    assigned queues; -1 for none."""

    span_max: int = setting(2_000, key="consumeConcurrentlyMaxSpan", low=1, high=65_535)
    """Limit on the range from the first to the last offset of a queue's unconsumed messages.
    Ordered consumers ignore it."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a failed pull. It doubles with each further failure, up to 10 s."""

    retries_max: int = setting(UNLIMITED, key="maxReconsumeTimes", low=UNLIMITED, high=2**31 - 1)
    """Retries before a message is dead-lettered: 3 allows four deliveries; -1 for 16 retries, or
    for no limit if ``ordered``."""

    consume_minutes_max: int = setting(15, key="consumeTimeout", unit="min", low=1)
    """Time limit of a handler call. After it the message is sent back for redelivery, and the call
    continues. Ordered consumers ignore it."""

    suspend_ms: int = setting(1_000, key="suspendCurrentQueueTimeMillis", unit="ms", low=10)
    """Pause of a queue after the handler of an ordered consumer failed; limited to 30,000."""

    send_filter: bool = setting(False, key="postSubscriptionWhenPull")
    """Whether each pull contains the filter; otherwise the broker uses the group's subscription."""

    persist_ms: int = setting(5_000, key="persistConsumerOffsetInterval", unit="ms", low=100)
    """Interval of offset commits."""

    rebalance_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """Interval of rebalances; a change of the group causes one at once. In the first minute a new
    topic is noticed within a second, later at the next rebalance."""

    lock_ms: int = setting(20_000, key="rocketmq.client.rebalance.lockInterval", unit="ms", low=100)
    """Interval at which ordered consumers renew their queue locks at the brokers."""

    unlock_delay_ms: int = setting(
        0, key="rocketmq.client.unlockDelayTimeMills", unit="ms", low=0, high=60_000
    )
    """How long a released queue stays locked if it has unconsumed messages. RocketMQ 4.9 uses
    20,000, later versions 0."""

    offset_folder: str = setting("", key="rocketmq.client.localOffsetStoreDir")
    """Folder of the local offset file for ``broadcast``; empty means ``~/.rocketmq_offsets``."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are recorded in the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Topic of the traces; empty for RocketMQ's trace topic."""

    stop_ms: int = setting(30_000, key="awaitTerminationMillisWhenShutdown", unit="ms", low=0)
    """How long `close` waits for running handlers. RocketMQ's default is not to wait."""


@dataclass(frozen=True, kw_only=True)
class PullSettings(Checked):
    """Settings of a pull consumer."""

    section: ClassVar[str] = "pull"

    if TYPE_CHECKING:

        def __init__(self, **named: Unpack[options.PullOnlyOptions]) -> None: ...

    pull_batch: int = setting(32, key="pullBatchSize", low=1, high=1024)
    """Messages per pull; a broker returns at most 32 messages that are in memory."""

    hold_ms: int = setting(20_000, key="brokerSuspendMaxTimeMillis", unit="ms", low=0, high=120_000)
    """How long a broker holds a pull while the queue has no new message."""

    response_margin_ms: int = setting(10_000, unit="ms", low=100)
    """Timeout of a pull, in addition to ``hold_ms``."""

    fetched_max: int = setting(10_000, key="pullThresholdForAll", low=1, high=1_000_000)
    """Limit on messages fetched ahead of the application, over all queues."""

    queue_messages_max: int = setting(1_000, key="pullThresholdForQueue", low=1, high=65_535)
    """Limit on fetched and not delivered messages of one queue; above it the queue is not
    pulled."""

    queue_mib_max: int = setting(100, key="pullThresholdSizeForQueue", unit="MiB", low=1, high=1024)
    """Limit on the size of the fetched and not delivered messages of one queue."""

    span_max: int = setting(2_000, key="consumeMaxSpan", low=1, high=65_535)
    """Limit on the range from the first to the last offset of a queue's fetched messages."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a failed pull. It doubles with each further failure, up to 10 s."""

    auto_commit_ms: int = setting(5_000, key="autoCommitIntervalMillis", unit="ms", low=0)
    """Interval of automatic commits; 0 commits only on `commit()`."""

    rebalance_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """Interval of rebalances; a change of the group causes one at once. In the first minute a new
    topic is noticed within a second, later at the next rebalance."""

    retries_max: int = setting(16, key="maxReconsumeTimes", low=0, high=2**31 - 1)
    """Retries before a message that is sent back is dead-lettered: 3 allows four deliveries."""

    offset_folder: str = setting("", key="rocketmq.client.localOffsetStoreDir")
    """Folder of the local offset file for ``broadcast``; empty means ``~/.rocketmq_offsets``."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are recorded in the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Topic of the traces; empty for RocketMQ's trace topic."""


@dataclass(frozen=True, kw_only=True)
class PopSettings(Checked):
    """Settings of a pop consumer."""

    section: ClassVar[str] = "pop"

    if TYPE_CHECKING:

        def __init__(self, **named: Unpack[options.PopOnlyOptions]) -> None: ...

    concurrency: int = setting(20, key="consumeThreadMax", low=1, high=1000)
    """Number of handler calls that run at a time, over all queues."""

    batch_max: int = setting(1, key="consumeMessageBatchMaxSize", low=1, high=32)
    """Limit on messages in one call of a batch handler."""

    pop_batch: int = setting(32, key="popBatchNums", low=1, high=32)
    """Messages per pop request."""

    invisible_ms: int = setting(60_000, key="popInvisibleTime", unit="ms", low=5_000, high=300_000)
    """Invisible time: how long other members do not see a delivered message. After that it is
    redelivered."""

    queue_messages_max: int = setting(96, key="popThresholdForQueue", low=1, high=1_000)
    """Limit on delivered and not acknowledged messages of one queue; above it the queue is not
    popped."""

    hold_ms: int = setting(15_000, unit="ms", low=0, high=60_000)
    """How long a broker holds a pop request while the queue has no new message."""

    response_margin_ms: int = setting(10_000, unit="ms", low=100)
    """Timeout of a pop request, in addition to ``hold_ms``."""

    ack_ms: int = setting(3_000, unit="ms", low=100)
    """Timeout of an ack or of a change of the invisible time."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a failed request. It doubles with each further failure, up to 10 s."""

    retries_max: int = setting(UNLIMITED, key="maxReconsumeTimes", low=UNLIMITED, high=2**31 - 1)
    """Retries after which only the invisible time is changed, until the broker dead-letters the
    message; -1 for 16."""

    assignment_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """Interval at which the assignment is fetched from the brokers."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are recorded in the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Topic of the traces; empty for RocketMQ's trace topic."""

    stop_ms: int = setting(30_000, key="awaitTerminationMillisWhenShutdown", unit="ms", low=0)
    """How long `close` waits for running handlers."""


@dataclass(frozen=True, kw_only=True)
class SimpleSettings(Checked):
    """Settings of a simple consumer."""

    section: ClassVar[str] = "simple"

    if TYPE_CHECKING:

        def __init__(self, **named: Unpack[options.SimpleOnlyOptions]) -> None: ...

    invisible_ms: int = setting(30_000, unit="ms", low=1_000, high=43_200_000)
    """Invisible time: how long other members do not see a received message. After that it is
    redelivered."""

    in_flight_max: int = setting(10_000, low=1, high=1_000_000)
    """Limit on received messages that are neither settled nor expired; above it `receive` raises
    `BackPressureError`."""

    retries_max: int = setting(UNLIMITED, key="maxReconsumeTimes", low=UNLIMITED, high=2**31 - 1)
    """Retries before a message is dead-lettered instead of received: 3 allows four deliveries; -1
    for 16 retries."""

    hold_ms: int = setting(5_000, unit="ms", low=100, high=60_000)
    """How long a broker holds one request while it has no new message. A redelivered message may be
    found only at its end."""

    ack_ms: int = setting(3_000, unit="ms", low=100)
    """Timeout of a request that the broker does not hold, such as an ack."""

    retry_ms: int = setting(1_000, unit="ms", low=1)
    """Pause of a broker after a failed request."""

    renew: bool = setting(False)
    """Whether the invisible time of a received message starts again, long before it is over, until
    the message is settled: for handlers that may take long. Settle each message then, or the
    consumer keeps it until it closes."""

    settle_again: bool = setting(False)
    """Whether an ack, nack or dead letter that a retry may cure is tried again, after ``retry_ms``,
    for as long as the invisible time is. If that does not help, the message is redelivered."""


@dataclass(frozen=True, kw_only=True)
class TraceSettings(Checked):
    """Settings of the trace dispatcher, which batches and sends trace records."""

    section: ClassVar[str] = "trace"

    if TYPE_CHECKING:

        def __init__(self, **named: Unpack[options.TraceOnlyOptions]) -> None: ...

    waiting_max: int = setting(2_048, low=1)
    """Limit on waiting records; further records are dropped and counted."""

    flush_ms: int = setting(5_000, unit="ms", low=1)
    """How long a record may wait for other records."""

    body_bytes_max: int = setting(118_000, unit="bytes", low=1_000, high=4 * 1024 * 1024)
    """Size at which a message of records is sent at once."""

    timeout_ms: int = setting(5_000, unit="ms", low=1)
    """Timeout of one message of records."""


S = TypeVar("S", bound=Checked)
Tables = Mapping[str, Mapping[str, Any]]
"""The content of a TOML file: section to setting to value."""

PREFIX = "COMETMQ_"
FILE_VARIABLE = PREFIX + "CONFIG"
FILE_BYTES_MAX = 1024 * 1024


def resolve_settings(
    kind: type[S],
    *,
    keywords: Mapping[str, Any] | None = None,
    given: S | None = None,
    environment: Mapping[str, str] | None = None,
    tables: Tables | None = None,
) -> S:
    """Make the settings of one kind from all that was said about them.

    Args:
        kind: the settings class.
        keywords: what the caller passed by name; every name must be a setting of ``kind``.
        given: what the caller passed as an object; only what was passed to it counts.
        environment: the variables; None for the variables of this process.
        tables: what the TOML file says; None for the file that the environment names, if any.

    Raises:
        ConfigError: a value is out of its range, or a name is unknown; says where it was met.
    """
    if not isinstance(given, kind | None):
        met = type(given).__name__
        raise ConfigError(f"settings of the type {met}: expected {kind.__name__}")
    variables = os.environ if environment is None else environment
    said = named_file(variables) if tables is None else tables
    values = _from_table(kind, said.get(kind.section, {}))
    values |= _from_environment(kind, variables)
    if given is not None:
        values |= {name: getattr(given, name) for name in given.given}
    if keywords:
        _refuse_unknown(keywords, kind, "keyword")
        values |= keywords
    return kind(**values)


def split_options(keywords: Mapping[str, Any], *kinds: type[Checked]) -> list[dict[str, Any]]:
    """Return the keywords of each settings class; a name that several have goes to the first.

    Raises:
        ConfigError: no kind has a setting of such a name; says which are near.
    """
    parts: list[dict[str, Any]] = [{} for _ in kinds]
    for name, value in keywords.items():
        for kind, part in zip(kinds, parts, strict=True):
            if name in _names(kind):
                part[name] = value
                break
        else:
            known = [known for kind in kinds for known in _names(kind)]
            raise UnknownSettingError(name, known)
    return parts


def named_file(environment: Mapping[str, str]) -> Tables:
    """Read the TOML file that COMETMQ_CONFIG names; nothing when it names none."""
    path = environment.get(FILE_VARIABLE)
    return read_tables(Path(path)) if path else {}


def read_tables(path: Path) -> Tables:
    """Read a TOML file of at most 1 MiB; tables of other programs are kept as they are.

    Raises:
        ConfigError: it cannot be read or is no TOML.
    """
    if not isinstance(path, str | Path):
        raise ConfigError(f"config={path!r}: expected the path of a TOML file")
    try:
        with Path(path).expanduser().open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        found = tomllib.loads(data.decode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    return {name: table for name, table in found.items() if isinstance(table, dict)}


def variable_of(kind: type[Checked], setting: Setting) -> str:
    """Return the name of the environment variable that sets a setting."""
    return f"{PREFIX}{kind.section}_{setting.name}".upper()


def _from_table(kind: type[Checked], table: Mapping[str, Any]) -> dict[str, Any]:
    where = f"table [{kind.section}]"
    _refuse_unknown(table, kind, where)
    known = {each.name: each for each in described(kind)}
    return {name: _parsed(known[name], _text(value), where) for name, value in table.items()}


def _from_environment(kind: type[Checked], variables: Mapping[str, str]) -> dict[str, Any]:
    prefix = f"{PREFIX}{kind.section}_".upper()
    ours = {name.removeprefix(prefix).lower() for name in variables if name.startswith(prefix)}
    _refuse_unknown(sorted(ours), kind, f"environment {prefix}*")
    found: dict[str, Any] = {}
    for each in described(kind):
        for name in (variable_of(kind, each), each.environment):
            if name and name in variables:
                found[each.name] = _parsed(each, variables[name], f"environment {name}")
                break
    return found


def _parsed(setting: Setting, text: str, where: str) -> Any:
    try:
        return setting.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)


def _names(kind: type[Checked]) -> list[str]:
    return [setting.name for setting in described(kind)]


def _refuse_unknown(names: Iterable[str], kind: type[Checked], where: str) -> None:
    known = _names(kind)
    for name in names:
        if name not in known:
            raise ConfigError(_unknown(name, known, where))


class UnknownSettingError(ConfigError):
    """A keyword of a constructor is neither a parameter nor a setting."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(_unknown(name, known, "keyword"))
        self.name = name
        self.known = known


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that were probably meant, at most two."""
    names = list(known)
    found = difflib.get_close_matches(name, names, n=2, cutoff=0.7)
    return found or difflib.get_close_matches(name, names, n=1, cutoff=0.6)


def _unknown(name: str, known: Iterable[str], where: str) -> str:
    near = near_names(name, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{where}: there is no setting {name!r}{hint}"
