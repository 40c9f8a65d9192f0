"""The flags of messages, pulls, topics and groups.

Source: MessageSysFlag, PullSysFlag, TopicSysFlag and CompressionType, RocketMQ 5.3.
"""

from typing import Final


class SysFlag:
    """Bits of a message, stored in its record."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_MASK: Final = 0xC
    TRANSACTION_NONE: Final = 0x0
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    TRANSACTION_ROLLBACK: Final = 0xC
    BORN_HOST_V6: Final = 0x10
    STORE_HOST_V6: Final = 0x20
    NEED_UNWRAP: Final = 0x40
    INNER_BATCH: Final = 0x80
    COMPRESSION_MASK: Final = 0x700
    LZ4: Final = 0x100
    ZSTD: Final = 0x200
    ZLIB: Final = 0x300


def transaction_type(sys_flag: int) -> int:
    """Return the transaction bits of a message's flag, one of ``SysFlag.TRANSACTION_...``."""
    return sys_flag & SysFlag.TRANSACTION_MASK


class PullSysFlag:
    """Bits of a pull request."""

    COMMIT_OFFSET: Final = 0x1
    SUSPEND: Final = 0x2
    SUBSCRIPTION: Final = 0x4
    CLASS_FILTER: Final = 0x8
    LITE_PULL: Final = 0x10


def pull_sys_flag(
    *,
    commit_offset: bool = False,
    suspend: bool = False,
    subscription: bool = False,
    class_filter: bool = False,
    lite_pull: bool = False,
) -> int:
    """Build the flag of a pull from its bits."""
    return (
        commit_offset * PullSysFlag.COMMIT_OFFSET
        | suspend * PullSysFlag.SUSPEND
        | subscription * PullSysFlag.SUBSCRIPTION
        | class_filter * PullSysFlag.CLASS_FILTER
        | lite_pull * PullSysFlag.LITE_PULL
    )


class TopicSysFlag:
    """Bits of a topic."""

    UNIT: Final = 0x1
    UNIT_SUB: Final = 0x2
