"""The settings of the store; the names in properties files are RocketMQ's.

Source: MessageStoreConfig, RocketMQ 5.3, for names and defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cometmq.model.delay import DEFAULT_LEVELS
from cometmq.model.errors import ConfigError
from cometmq.system.settings import setting

_MIB = 1024 * 1024


def _default_root() -> Path:
    return Path.home() / "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Where the store is, how large its files are, when it flushes and when it deletes."""

    root: Path = setting(key="storePathRootDir", factory=_default_root)
    """The directory that holds everything."""

    commit_log_dir: Path | None = setting(None, key="storePathCommitLog")
    """The directory of the commit log; ``commitlog`` below the root when not set."""

    commit_log_file_bytes: int = setting(
        1024 * _MIB, key="mappedFileSizeCommitLog", unit="bytes", low=4096, high=2**31 - 1
    )
    """The size of each commit-log file. A store must be opened with the size it was made with."""

    consume_queue_file_bytes: int = setting(
        300_000 * 20, key="mappedFileSizeConsumeQueue", unit="bytes", low=20, high=2**31 - 1
    )
    """The size of each consume-queue file; rounded up to whole units of 20 bytes."""

    consume_queue_ext_enabled: bool = setting(False, key="enableConsumeQueueExt")
    """Whether each new queue entry gets an extension unit, as SQL pre-filters of RocketMQ want."""

    consume_queue_ext_file_bytes: int = setting(
        48 * _MIB, key="mappedFileSizeConsumeQueueExt", unit="bytes", low=64, high=2**31 - 1
    )
    """The size of each file of extension units."""

    index_enabled: bool = setting(True, key="messageIndexEnable")
    """Whether messages can be looked up by key."""

    index_safe: bool = setting(False, key="messageIndexSafe")
    """Whether a start after a crash also goes back to where the index was last known whole."""

    index_slots: int = setting(5_000_000, key="maxHashSlotNum", low=1, high=2**28)
    """Hash slots in each index file. A store must be opened with the number it was made with."""

    index_entries: int = setting(20_000_000, key="maxIndexNum", low=2, high=2**26)
    """Entries in each index file; likewise."""

    message_bytes_max: int = setting(
        4 * _MIB, key="maxMessageSize", unit="bytes", low=1, high=128 * _MIB, remote=True
    )
    """The largest body."""

    long_topic_records: bool = setting(True, key="autoMessageVersionOnTopicLen")
    """Whether topics over 127 bytes are taken, in records that RocketMQ 4 cannot read."""

    check_crc_on_recover: bool = setting(True, key="checkCRCOnRecover")
    """Whether the start after a crash checks the checksum of each body it walks over."""

    cut_damaged_log: bool = setting(False, key="cutDamagedLog")
    """Whether opening a log with damage in the middle cuts it there, losing what follows."""

    flush_disk_type: str = setting(
        "SYNC_FLUSH", key="flushDiskType", choices=("ASYNC_FLUSH", "SYNC_FLUSH")
    )
    """Whether a send is acknowledged before or after its bytes are on the disk. RocketMQ's own
    default is ``ASYNC_FLUSH``."""

    sync_flush_timeout_ms: int = setting(
        5000, key="syncFlushTimeout", unit="ms", low=100, high=600_000
    )
    """A send that waited this long for the disk is told that its bytes may not be there."""

    flush_interval_ms: int = setting(
        500, key="flushIntervalCommitLog", unit="ms", low=1, high=3_600_000, remote=True
    )
    """How often an asynchronous flush looks for work."""

    flush_least_pages: int = setting(
        4, key="flushCommitLogLeastPages", low=0, high=2**20, remote=True
    )
    """Pages of 4 KiB that must be waiting before an asynchronous flush acts."""

    flush_thorough_interval_ms: int = setting(
        10_000, key="flushCommitLogThoroughInterval", unit="ms", low=1, high=3_600_000, remote=True
    )
    """How often it acts on any byte."""

    flush_queue_interval_ms: int = setting(
        1000, key="flushIntervalConsumeQueue", unit="ms", low=1, high=3_600_000, remote=True
    )
    """How often queues are flushed."""

    flush_queue_least_pages: int = setting(
        2, key="flushConsumeQueueLeastPages", low=0, high=2**20, remote=True
    )
    """Pages that must be waiting in a queue before its flush acts."""

    flush_queue_thorough_interval_ms: int = setting(
        60_000,
        key="flushConsumeQueueThoroughInterval",
        unit="ms",
        low=1,
        high=3_600_000,
        remote=True,
    )
    """How often it acts on any byte and the checkpoint is written."""

    segment_wait_ms: int = setting(5000, key="segmentWaitMs", unit="ms", low=1, high=60_000)
    """How long an append waits for a commit-log file that is being made."""

    clean_interval_ms: int = setting(
        10_000, key="cleanResourceInterval", unit="ms", low=10, high=3_600_000, remote=True
    )
    """How often old files are looked for."""

    delete_when: tuple[str, ...] = setting(("04",), key="deleteWhen")
    """Local hours, from 00 to 23, in which expired files are deleted."""

    file_reserved_hours: int = setting(
        72, key="fileReservedTime", unit="hours", low=0, high=10_000_000, remote=True
    )
    """How long a commit-log file is kept after its last write."""

    delete_files_batch_max: int = setting(10, key="deleteFileBatchMax", low=1, high=1000)
    """Commit-log files deleted in one round at most."""

    disk_used_ratio_max: int = setting(
        75, key="diskMaxUsedSpaceRatio", unit="%", low=10, high=95, remote=True
    )
    """Above this use of the disk expired files go at any hour."""

    disk_clean_forcibly_ratio: int = setting(
        85, key="diskSpaceCleanForciblyRatio", unit="%", low=1, high=100
    )
    """Above this the oldest files go even if they have not expired."""

    disk_warning_ratio: int = setting(
        90, key="diskSpaceWarningLevelRatio", unit="%", low=1, high=100
    )
    """Above this sends are refused until there is room again."""

    clean_forcibly_enabled: bool = setting(True, key="cleanFileForciblyEnable")
    """Whether files that have not expired may go when the disk is nearly full."""

    transfer_bytes_memory_max: int = setting(
        262_144, key="maxTransferBytesOnMessageInMemory", unit="bytes", low=1, high=2**31 - 1
    )
    """Bytes in one answer to a pull of recent messages."""

    transfer_count_memory_max: int = setting(
        32, key="maxTransferCountOnMessageInMemory", low=1, high=2**20
    )
    """Messages in one answer to a pull of recent messages."""

    transfer_bytes_disk_max: int = setting(
        65_536, key="maxTransferBytesOnMessageInDisk", unit="bytes", low=1, high=2**31 - 1
    )
    """Bytes in one answer to a pull of messages that are no longer in memory."""

    transfer_count_disk_max: int = setting(
        8, key="maxTransferCountOnMessageInDisk", low=1, high=2**20
    )
    """Messages in one answer to a pull of messages that are no longer in memory."""

    memory_ratio: int = setting(40, key="accessMessageInMemoryMaxRatio", unit="%", low=0, high=100)
    """The share of physical memory in which the newest messages are taken to be."""

    filter_units_bytes_max: int = setting(
        16_000, key="maxFilterMessageSize", unit="bytes", low=20, high=2**31 - 1
    )
    """Bytes of queue units looked at in one pull."""

    query_count_max: int = setting(64, key="maxMsgsNumBatch", low=1, high=2**20)
    """Messages in one answer to a query by key."""

    delay_levels: str = setting(DEFAULT_LEVELS, key="messageDelayLevel")
    """The delay of each level, from level 1 on."""

    def __post_init__(self) -> None:
        """Check what a range cannot say.

        Raises:
            ConfigError: several directories are given for the commit log.
        """
        if "," in str(self.commit_log_dir or ""):
            raise ConfigError(
                f"storePathCommitLog={self.commit_log_dir}: one directory is supported, not a list"
            )

    @property
    def commit_log(self) -> Path:
        """The directory of the commit log."""
        return self.commit_log_dir or self.root / "commitlog"

    @property
    def sync_flush(self) -> bool:
        """Whether a send waits for the disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def queue_file_bytes(self) -> int:
        """The size of each consume-queue file in whole units."""
        return -(-self.consume_queue_file_bytes // 20) * 20

    @property
    def index_file_bytes(self) -> int:
        """The size of each index file."""
        return 40 + self.index_slots * 4 + self.index_entries * 20
