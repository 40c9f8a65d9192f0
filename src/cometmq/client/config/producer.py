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
    """Time for a whole send, its retries included, where the call says nothing else."""

    try_timeout_ms: int = setting(-1, key="sendMsgMaxTimeoutPerRequest", unit="ms", low=-1)
    """Time for one try of a send; -1 for all the time that is left."""

    retries: int = setting(2, key="retryTimesWhenSendFailed", low=0, high=16)
    """Further tries, on other brokers where there are any, after the first one failed."""

    retries_async: int = setting(2, key="retryTimesWhenSendAsyncFailed", low=0, high=16)
    """The same for `Producer.send_soon`, which tries again only when a broker cannot be reached."""

    retry_not_stored: bool = setting(False, key="retryAnotherBrokerWhenNotStoreOK")
    """Whether a message that is stored, but not as safely as wanted, is sent to another broker."""

    retry_codes: tuple[str, ...] = setting(RETRIED, key="retryResponseCodes")
    """Refusals after which another broker is tried: names of response codes, or numbers."""

    compress_from_bytes: int = setting(4_096, key="compressMsgBodyOverHowmuch", unit="bytes", low=0)
    """Bodies of this size and above are compressed; batches never are."""

    compress_level: int = setting(5, key="compressLevel", low=0, high=9)
    """The compressor's level: 1 is fastest, 9 is smallest, 0 sends bodies as they are."""

    compress_type: str = setting("zlib", key="compressType", choices=tuple(COMPRESSIONS))
    """The compressor; lz4 and zstd need the packages ``lz4`` and ``zstandard`` on both sides."""

    body_bytes_max: int = setting(4 * MIB, key="maxMessageSize", unit="bytes", low=1)
    """Largest body of a message, or of a whole batch once encoded."""

    split_bytes: int = setting(1_000_000, unit="bytes", low=1)
    """Where `Producer.send_all` begins the next batch, by an estimate of the encoded size."""

    new_topic_queues: int = setting(4, key="defaultTopicQueueNums", low=1, high=1024)
    """Queues of a topic that a broker creates because this producer sent to it."""

    topics: tuple[str, ...] = setting(())
    """Topics whose routes are fetched at the start, so that the first send finds them."""

    latency_avoidance: bool = setting(False, key="sendLatencyEnable")
    """Whether brokers that were slow or failed of late are left alone for a while."""

    latency_line: int = setting(5, low=4, high=5)
    """Whose limits and pauses count for that: those of RocketMQ 4.9 or those of 5.x."""

    detector: bool = setting(False, key="startDetectorEnable")
    """Whether brokers that are left alone are probed, and taken back as soon as they answer."""

    detect_timeout_ms: int = setting(200, key="detectTimeout", unit="ms", low=1)
    """Time for the answer to a probe."""

    detect_interval_ms: int = setting(2_000, key="detectInterval", unit="ms", low=10)
    """How often a broker that is left alone is probed."""

    back_pressure: bool = setting(False, key="enableBackpressureForAsyncMode")
    """Whether `Producer.send_soon` refuses messages beyond the next two limits."""

    back_pressure_messages: int = setting(10_000, key="backPressureForAsyncSendNum", low=10)
    """Messages that may be on their way at a time."""

    back_pressure_bytes: int = setting(
        100 * MIB, key="backPressureForAsyncSendSize", unit="bytes", low=MIB
    )
    """Bytes of bodies that may be on their way at a time."""

    auto_batch: bool = setting(False, key="autoBatch")
    """Whether single sends are gathered into batches before they leave."""

    auto_batch_delay_ms: int = setting(10, key="batchMaxDelayMs", unit="ms", low=1, high=30_000)
    """How long a message may wait for others."""

    auto_batch_bytes: int = setting(
        32 * KIB, key="batchMaxBytes", unit="bytes", low=1, high=2 * MIB
    )
    """A batch leaves at once when its bodies are larger."""

    auto_batch_total_bytes: int = setting(32 * MIB, key="totalBatchMaxBytes", unit="bytes", low=1)
    """When so much is waiting to be gathered, messages are sent one by one."""

    trace: bool = setting(False, key="enableTrace")
    """Whether each stored message is told to the trace topic."""

    trace_topic: str = setting("", key="traceTopic")
    """Where traces go; empty for RocketMQ's own trace topic."""

    check_waiting_max: int = setting(2_000, key="checkRequestHoldMax", low=1)
    """Brokers' questions about transactions that may wait for an answer at a time."""

    check_concurrency: int = setting(1, key="checkThreadPoolMaxSize", low=1, high=1000)
    """Brokers' questions about transactions that the listener is asked at a time."""

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
            f"retry_codes: {text!r} is neither the name of a response code nor a number"
        ) from None
