"""The settings of the store; the names in properties files are RocketMQ's.

Source: MessageStoreConfig, RocketMQ 5.3, for names and defaults.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.model.delay import DEFAULT_LEVELS, DelayLevels
from cometmq.model.errors import ConfigError
from cometmq.system.settings import setting, settings_class

_MIB = 1024 * 1024

LOG_FILE_BYTES = 1024 * _MIB
"""The size of a log file by default, RocketMQ's."""
SMALL_LOG_FILE_BYTES = 64 * _MIB
"""The size by default in ``cometmq standalone``: a file is reserved on the disk as a whole."""


@settings_class
class StoreSettings:
    """The directory of the store, the sizes of its files, its flushes and its retention."""

    root: Path = setting(key="storePathRootDir", factory=lambda: Path.home() / "store")
    """The directory of the store. Default: ``~/store``."""

    commit_log_dir: Path | None = setting(None, key="storePathCommitLog")
    """The directory of the commit log. Default: ``commitlog`` in the store directory."""

    commit_log_file_bytes: int = setting(
        LOG_FILE_BYTES, key="mappedFileSizeCommitLog", unit="bytes", low=4096, high=2**31 - 1
    )
    """Size of a commit-log file. ``cometmq standalone`` has its own default, 67108864 (64 MiB).
    A store with files of 64 MiB or 1 GiB keeps their size. Do not change any other size for an
    existing store.
    """

    consume_queue_file_bytes: int = setting(
        300_000 * 20, key="mappedFileSizeConsumeQueue", unit="bytes", low=20, high=2**31 - 1
    )
    """Size of a consume-queue file; rounded up to whole units of 20 bytes."""

    batch_queue_file_bytes_max: int = setting(
        300_000 * 46, key="mapperFileSizeBatchConsumeQueue", unit="bytes", low=46, high=2**31 - 1
    )
    """Size of a file of a queue that holds batches; rounded down to whole units of 46 bytes."""

    consume_queue_ext_enabled: bool = setting(False, key="enableConsumeQueueExt")
    """Whether each consume-queue unit gets an extension unit, with the bit map for SQL92 filters
    (see ``enableCalcFilterBitMap``).
    """

    consume_queue_ext_file_bytes: int = setting(
        48 * _MIB, key="mappedFileSizeConsumeQueueExt", unit="bytes", low=64, high=2**31 - 1
    )
    """Size of a file of extension units. A queue that has such files keeps their size."""

    index_enabled: bool = setting(True, key="messageIndexEnable")
    """Whether messages can be looked up by key."""

    index_safe: bool = setting(False, key="messageIndexSafe")
    """Whether recovery after a crash also starts at the last position at which the index was
    complete.
    """

    index_slots: int = setting(5_000_000, key="maxHashSlotNum", low=1, high=2**28)
    """Number of hash slots of an index file. Do not change it for an existing store."""

    index_entries: int = setting(20_000_000, key="maxIndexNum", low=2, high=2**26)
    """Number of entries of an index file. Do not change it for an existing store."""

    message_bytes_max: int = setting(
        4 * _MIB, key="maxMessageSize", unit="bytes", low=1, high=128 * _MIB, remote=True
    )
    """Maximum size of a body."""

    long_topic_records: bool = setting(True, key="autoMessageVersionOnTopicLen")
    """Whether topic names over 127 bytes are accepted, in records that RocketMQ 4 cannot read."""

    check_crc_on_recover: bool = setting(True, key="checkCRCOnRecover")
    """Whether recovery after a crash checks the checksums of bodies."""

    cut_damaged_log: bool = setting(False, key="cutDamagedLog")
    """Whether a log with damage in the middle is truncated there when it is opened. All messages
    after the damage are lost.
    """

    flush_disk_type: str = setting(
        "SYNC_FLUSH", key="flushDiskType", choices=("ASYNC_FLUSH", "SYNC_FLUSH")
    )
    """SYNC_FLUSH acknowledges a send after its record is on disk, ASYNC_FLUSH before. RocketMQ's
    default is ``ASYNC_FLUSH``.
    """

    sync_flush_timeout_ms: int = setting(
        5000, key="syncFlushTimeout", unit="ms", low=100, high=600_000
    )
    """A send that waits longer than this for the disk gets the status FLUSH_DISK_TIMEOUT."""

    flush_interval_ms: int = setting(
        500, key="flushIntervalCommitLog", unit="ms", low=1, high=3_600_000, remote=True
    )
    """Interval of asynchronous flushes."""

    flush_least_pages: int = setting(
        4, key="flushCommitLogLeastPages", low=0, high=2**20, remote=True
    )
    """Minimum number of unflushed pages of 4 KiB for an asynchronous flush."""

    flush_thorough_interval_ms: int = setting(
        10_000, key="flushCommitLogThoroughInterval", unit="ms", low=1, high=3_600_000, remote=True
    )
    """Interval at which an asynchronous flush ignores this minimum."""

    flush_queue_interval_ms: int = setting(
        1000, key="flushIntervalConsumeQueue", unit="ms", low=1, high=3_600_000, remote=True
    )
    """Interval of consume-queue flushes."""

    flush_queue_least_pages: int = setting(
        2, key="flushConsumeQueueLeastPages", low=0, high=2**20, remote=True
    )
    """Minimum number of unflushed pages for the flush of a consume queue."""

    flush_queue_thorough_interval_ms: int = setting(
        60_000,
        key="flushConsumeQueueThoroughInterval",
        unit="ms",
        low=1,
        high=3_600_000,
        remote=True,
    )
    """Interval at which a consume-queue flush ignores this minimum and the checkpoint is written.
    """

    segment_wait_ms: int = setting(5000, key="segmentWaitMs", unit="ms", low=1, high=60_000)
    """Maximum time that a send waits for a commit-log file to be allocated."""

    clean_interval_ms: int = setting(
        10_000, key="cleanResourceInterval", unit="ms", low=10, high=3_600_000, remote=True
    )
    """Interval at which old files are deleted."""

    mapped_queue_files_max: int = setting(0, key="mappedQueueFilesMax", low=0, high=2**20)
    """Maximum number of consume-queue files that are mapped at a time. The queues beyond it are
    written without a mapping. 0 means 45 % of the open files that the system allows, at most 4096.
    """

    delete_when: tuple[str, ...] = setting(("04",), key="deleteWhen", remote=True)
    """Local hours, from 00 to 23, in which expired files are deleted."""

    file_reserved_hours: int = setting(
        72, key="fileReservedTime", unit="hours", low=0, high=10_000_000, remote=True
    )
    """How long a commit-log file is kept after its last write."""

    delete_files_batch_max: int = setting(10, key="deleteFileBatchMax", low=1, high=1000)
    """Maximum number of commit-log files deleted at a time."""

    disk_used_ratio_max: int = setting(
        75, key="diskMaxUsedSpaceRatio", unit="%", low=10, high=95, remote=True
    )
    """Disk usage above which expired files are deleted at any hour."""

    disk_clean_forcibly_ratio: int = setting(
        85, key="diskSpaceCleanForciblyRatio", unit="%", low=1, high=100
    )
    """Disk usage above which the oldest files are deleted even if they have not expired."""

    disk_warning_ratio: int = setting(
        90, key="diskSpaceWarningLevelRatio", unit="%", low=1, high=100
    )
    """Disk usage above which sends are refused until space is free again."""

    clean_forcibly_enabled: bool = setting(True, key="cleanFileForciblyEnable")
    """Whether files that have not expired are deleted when the disk is nearly full."""

    transfer_bytes_memory_max: int = setting(
        262_144, key="maxTransferBytesOnMessageInMemory", unit="bytes", low=1, high=2**31 - 1
    )
    """Maximum bytes in the response to a pull of messages in memory."""

    transfer_count_memory_max: int = setting(
        32, key="maxTransferCountOnMessageInMemory", low=1, high=2**20
    )
    """Maximum messages in the response to a pull of messages in memory."""

    transfer_bytes_disk_max: int = setting(
        65_536, key="maxTransferBytesOnMessageInDisk", unit="bytes", low=1, high=2**31 - 1
    )
    """Maximum bytes in the response to a pull of messages that are not in memory."""

    transfer_count_disk_max: int = setting(
        8, key="maxTransferCountOnMessageInDisk", low=1, high=2**20
    )
    """Maximum messages in the response to a pull of messages that are not in memory."""

    memory_ratio: int = setting(40, key="accessMessageInMemoryMaxRatio", unit="%", low=0, high=100)
    """Share of physical memory in which the newest messages are assumed to be."""

    read_ahead: bool = setting(True, key="dataReadAheadEnable", remote=True)
    """Whether files that a consumer reads in order are read from the disk in blocks of 1 MiB, some
    of them ahead; else only the messages of each pull are read.
    """

    filter_units_bytes_max: int = setting(
        16_000, key="maxFilterMessageSize", unit="bytes", low=20, high=2**31 - 1
    )
    """Maximum bytes of consume-queue units that one pull reads."""

    query_count_max: int = setting(64, key="maxMsgsNumBatch", low=1, high=2**20)
    """Maximum messages in the response to a query by key."""

    delay_levels: str = setting(DEFAULT_LEVELS, key="messageDelayLevel")
    """The delay of each level, from level 1 on: numbers with the units s, m, h or d."""

    timer_wheel_enabled: bool = setting(True, key="timerWheelEnable")
    """Whether timer messages are accepted and delivered. With false they are refused, and those
    that wait go on waiting.
    """

    timer_precision_ms: int = setting(1000, key="timerPrecisionMs", unit="ms", low=100, high=1000)
    """The length of a slot of the timer wheel: 100, 200, 500 or 1000."""

    timer_max_delay_s: int = setting(
        259_200, key="timerMaxDelaySec", unit="s", low=1, high=2**31 - 1, remote=True
    )
    """The longest delay of a timer message: three days."""

    timer_roll_window_slots: int = setting(172_800, key="timerRollWindowSlot", low=2, high=604_740)
    """A timer message that is further away, in slots, is stored again on its way: two days. Two
    thirds of ``fileReservedTime`` if that is less.
    """

    timer_congestion_max: int = setting(
        2**31 - 1, key="timerCongestNumEachSlot", low=1, high=2**31 - 1, remote=True
    )
    """Timer messages of one slot above which further ones are refused, at random up to twice that.
    """

    timer_flush_interval_ms: int = setting(
        1000, key="timerFlushIntervalMs", unit="ms", low=10, high=60_000, remote=True
    )
    """Interval at which the files of the timers are written."""

    timer_log_file_bytes: int = setting(
        100 * _MIB, key="mappedFileSizeTimerLog", unit="bytes", low=4096, high=2**31 - 1
    )
    """Size of a file of the timer log. Existing files keep their size."""

    def __post_init__(self) -> None:
        """Check what a range cannot say.

        Raises:
            ConfigError: several directories are given for the commit log, or what is given for
                an hour, a delay level or the precision of timers is none.
        """
        DelayLevels.parse(self.delay_levels)
        if self.timer_precision_ms not in (100, 200, 500, 1000):
            raise ConfigError(
                f"timerPrecisionMs={self.timer_precision_ms}: expected 100, 200, 500 or 1000"
            )
        for hour in self.delete_when:
            if not (hour.isascii() and hour.isdigit() and int(hour) <= 23):
                raise ConfigError(f"deleteWhen: met {hour!r}, expected hours from 00 to 23")
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
    def batch_queue_file_bytes(self) -> int:
        """The size of each file of a queue that holds batches, in whole units."""
        return self.batch_queue_file_bytes_max // 46 * 46
