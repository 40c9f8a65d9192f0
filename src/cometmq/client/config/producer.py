"""What can be set on a producer; the defaults are RocketMQ's.

Source: DefaultMQProducer and TransactionMQProducer, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.client.config.base import KIB, MIB, Checked
from cometmq.model.errors import ConfigError
from cometmq.model.flags import SysFlag
from cometmq.protocol.codes import ResponseCode
from cometmq.system.settings import setting

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


@dataclass(frozen=True)
class ProducerSettings(Checked):
    """Settings of a producer."""

    section: ClassVar[str] = "producer"

    timeout_ms: int = setting(3_000, key="sendMsgTimeout", unit="ms", low=1)
    """Timeout of a whole send with its retries, if the call sets none."""

    try_timeout_ms: int = setting(-1, key="sendMsgMaxTimeoutPerRequest", unit="ms", low=-1)
    """Timeout of one attempt of a send; -1 for all of the remaining time."""

    retries: int = setting(2, key="retryTimesWhenSendFailed", low=0, high=16)
    """Retries after the first attempt failed, on other brokers if there are any."""

    retries_async: int = setting(2, key="retryTimesWhenSendAsyncFailed", low=0, high=16)
    """The same for `Producer.send_soon`, which retries only if a broker cannot be reached."""

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

    latency_line: int = setting(5, low=4, high=5)
    """Which limits and pauses apply to it: 4 for those of RocketMQ 4.9, 5 for those of 5.x."""

    detector: bool = setting(False, key="startDetectorEnable")
    """Whether avoided brokers are probed, and used again as soon as they respond."""

    detect_timeout_ms: int = setting(200, key="detectTimeout", unit="ms", low=1)
    """Timeout of a probe."""

    detect_interval_ms: int = setting(2_000, key="detectInterval", unit="ms", low=10)
    """Interval of probes of an avoided broker."""

    back_pressure: bool = setting(False, key="enableBackpressureForAsyncMode")
    """Whether `Producer.send_soon` refuses messages above the next two limits."""

    back_pressure_messages: int = setting(10_000, key="backPressureForAsyncSendNum", low=10)
    """Limit on messages in flight."""

    back_pressure_bytes: int = setting(
        100 * MIB, key="backPressureForAsyncSendSize", unit="bytes", low=MIB
    )
    """Limit on bytes of bodies in flight."""

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
