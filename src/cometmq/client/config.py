"""What can be set on a client; the defaults are RocketMQ's.

Source: ClientConfig, DefaultMQProducer, DefaultLitePullConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.system.settings import describe, setting

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class _Checked:
    """Settings that are made in programs, and so are checked when they are made."""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: one is out of its range; says which, and what was expected.
        """
        kind: type = type(self)
        for known in describe(kind):
            known.parse(known.render(getattr(self, known.name)))


@dataclass(frozen=True)
class ClientSettings(_Checked):
    """Settings shared by producers, consumers and the admin client."""

    client_ip: str = setting("", key="clientIP")
    """First part of the client id; empty means the address this machine uses outwards."""

    instance_name: str = setting("DEFAULT", key="instanceName")
    """Second part of the client id; ``DEFAULT`` becomes process id and a number of its own."""

    route_refresh_ms: int = setting(30_000, key="pollNameServerInterval", unit="ms", low=10)
    """How often the routes of all topics in use are fetched again."""

    heartbeat_ms: int = setting(30_000, key="heartbeatBrokerInterval", unit="ms", low=10)
    """How often each broker is told that this client lives; a broker forgets it after 120 s."""

    call_timeout_ms: int = setting(3_000, key="mqClientApiTimeout", unit="ms", low=1)
    """Time for one background call: routes, heartbeats, offsets."""


@dataclass(frozen=True)
class ProducerSettings(_Checked):
    """Settings of a producer."""

    retries: int = setting(2, key="retryTimesWhenSendFailed", low=0, high=16)
    """Further tries, on other brokers where there are any, after the first one failed."""

    compress_from_bytes: int = setting(4_096, key="compressMsgBodyOverHowmuch", unit="bytes", low=0)
    """Bodies of this size and above are compressed with zlib; batches never are."""

    compress_level: int = setting(5, low=0, high=9)
    """zlib's level: 1 is fastest, 9 is smallest, 0 stores uncompressed."""

    body_bytes_max: int = setting(4 * MIB, key="maxMessageSize", unit="bytes", low=1)
    """Largest body of a message, or of a whole batch once encoded."""

    new_topic_queues: int = setting(4, key="defaultTopicQueueNums", low=1, high=1024)
    """Queues of a topic that a broker creates because this producer sent to it."""


@dataclass(frozen=True)
class PullSettings(_Checked):
    """Settings of a pull consumer."""

    pull_batch: int = setting(32, key="pullBatchSize", low=1, high=1024)
    """Messages asked for at once; a broker gives at most 32 of those in its memory."""

    hold_ms: int = setting(20_000, key="brokerSuspendMaxTimeMillis", unit="ms", low=0, high=120_000)
    """How long a broker holds a pull while the queue has nothing new."""

    answer_margin_ms: int = setting(10_000, unit="ms", low=100)
    """Time allowed for the answer beyond the hold."""

    fetched_max: int = setting(1_000, low=1, high=1_000_000)
    """Messages fetched ahead of the application, over all queues of the consumer."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a pull of it failed."""

    auto_commit_ms: int = setting(5_000, key="autoCommitIntervalMillis", unit="ms", low=0)
    """How often finished messages are committed by themselves; 0 leaves it to ``commit()``."""
