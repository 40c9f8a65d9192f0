"""The topic: its settings, its permissions, reserved names and the rules for names.

Source: TopicConfig, PermName, TopicValidator, MixAll, Validators and NamespaceUtil, RocketMQ 5.3.
"""

import re
from collections.abc import Iterable, Iterator
from reprlib import repr as short
from typing import Final

import msgspec

from cometmq.model.errors import InvalidNameError

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"

TEMPLATE_TOPIC: Final = "TBW102"
DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRANSACTION_DISCARD_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
PRODUCER_SESSION_TOPIC: Final = "rmq_sys_COMETMQ_PRODUCER_SESSIONS"
PRODUCER_SESSION_QUEUE: Final = 0
"""The only queue of it."""
MAPPING_TOPIC: Final = "rmq_sys_COMETMQ_MAPPINGS"
"""The changes of the mappings of static topics."""
MAPPING_QUEUE: Final = 0
"""The only queue of it."""
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
SYNC_BROKER_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"

SYSTEM_TOPICS: Final = frozenset(
    {
        TEMPLATE_TOPIC,
        DELAY_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRACE_TOPIC,
        TRANSACTION_DISCARD_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
"""Topics every broker has for itself."""

SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        DELAY_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANSACTION_DISCARD_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        PRODUCER_SESSION_TOPIC,
        MAPPING_TOPIC,
    }
)
"""System topics that no client may send to."""

TOPICS_OF_WAITING: Final = SEND_FORBIDDEN_TOPICS | {TIMER_TOPIC}
"""Topics with messages of other topics, or about them: delayed ones, half messages and the like."""

TOPIC_CHARS_MAX: Final = 127
GROUP_CHARS_MAX: Final = 255
QUEUES_MAX: Final = 65_535
"""The limit of queues of one topic on one broker; a route with more is truncated to it."""

_ALLOWED: Final = "^[%|a-zA-Z0-9_-]+$"
_ILLEGAL = re.compile("[^%|a-zA-Z0-9_-]")


class Perm:
    """The permissions of a topic's queues: a sum of these bits."""

    INHERIT: Final = 1
    WRITE: Final = 2
    READ: Final = 4
    PRIORITY: Final = 8


class TopicConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """The settings of one topic on one broker."""

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = Perm.READ | Perm.WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def readable(self) -> bool:
        """Whether consumers may read."""
        return bool(self.perm & Perm.READ)

    @property
    def writable(self) -> bool:
        """Whether producers may write."""
        return bool(self.perm & Perm.WRITE)


def retry_topic(group: str) -> str:
    """Return the retry topic of a group, whose messages are redelivered."""
    return RETRY_PREFIX + group


def retry_topics(group: str, topic: str) -> tuple[str, ...]:
    """Return the topics through which a topic's messages may be redelivered to a group.

    Popped messages have retry topics of their own, with one of two signs in the name.
    """
    name = retry_topic(group)
    return name, f"{name}_{topic}", f"{name}+{topic}"


def poppers_of(retry_topic: str) -> Iterator[tuple[str, str]]:
    """Yield the groups and topics whose popped messages may be redelivered through a retry topic.

    Its name joins them with ``_`` or ``+``. The first one may be part of their own names.
    """
    text = retry_topic.removeprefix(RETRY_PREFIX)
    signs = "+" if "+" in text else "_"
    for n, sign in enumerate(text):
        if sign == signs:
            yield text[:n], text[n + 1 :]


def dlq_topic(group: str) -> str:
    """Return the dead-letter topic of a group."""
    return DLQ_PREFIX + group


def revive_topic(cluster: str) -> str:
    """Return the topic with the check points and acknowledgements of popped messages."""
    return REVIVE_PREFIX + cluster


def reply_topic(cluster: str) -> str:
    """Return the topic for the replies in a cluster."""
    return cluster + REPLY_SUFFIX


def is_system_topic(name: str) -> bool:
    """Whether a topic is a system topic, by its name."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def application_topics(
    names: Iterable[str], brokers: Iterable[str], clusters: Iterable[str]
) -> list[str]:
    """Return the topics of applications, in order.

    Retry and dead-letter topics are none, nor are system topics and the topics that brokers make
    with their own name and with that of their cluster.

    Args:
        names: the topics.
        brokers: the names of the brokers.
        clusters: the names of their clusters.
    """
    clusters = {*clusters}
    own = {*brokers, *clusters, *map(reply_topic, clusters)}
    return sorted(
        name
        for name in names
        if name not in own
        and not is_system_topic(name)
        and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    )


def check_topic_name(name: str) -> None:
    """Check the name of a topic.

    Raises:
        InvalidNameError: it is blank, too long or has characters that are not allowed; the text
            begins like that of RocketMQ's brokers, and adds what was met.
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"topic={name!r}: expected the name of a topic, which is text")
    if not name.strip():
        raise InvalidNameError("The specified topic is blank.")
    if _ILLEGAL.search(name):
        raise InvalidNameError(
            f"The specified topic contains illegal characters, allowing only {_ALLOWED}",
            f": {short(name)}",
        )
    if len(name) > TOPIC_CHARS_MAX:
        raise InvalidNameError(
            "The specified topic is longer than topic max length.",
            f" It has {len(name)} characters, at most {TOPIC_CHARS_MAX} are allowed: {short(name)}",
        )


def check_consumer_group_name(name: str) -> None:
    """Check the name of a consumer group, as brokers know it: its retry topic must be possible.

    Raises:
        InvalidNameError: as `check_group_name`; or its retry topic would be too long.
    """
    check_group_name(name)
    if len(retry_topic(name)) > GROUP_CHARS_MAX:
        raise InvalidNameError(
            f"the consumer group {short(name)} has {len(name)} characters: at most"
            f" {GROUP_CHARS_MAX - len(RETRY_PREFIX)} are possible, since its retry topic is"
            f" {RETRY_PREFIX} and the group, of at most {GROUP_CHARS_MAX} characters"
        )


def check_group_name(name: str) -> None:
    """Check the name of a producer or consumer group.

    Raises:
        InvalidNameError: it is blank, too long or has characters that are not allowed; the text is
            the one RocketMQ's clients show.
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"group={name!r}: expected the name of a group, which is text")
    if not name.strip():
        raise InvalidNameError("the specified group is blank")
    if len(name) > GROUP_CHARS_MAX:
        raise InvalidNameError(
            f"the specified group is longer than group max length {GROUP_CHARS_MAX}.",
            f" It has {len(name)} characters: {short(name)}",
        )
    if _ILLEGAL.search(name):
        raise InvalidNameError(
            f"the specified group[{name}] contains illegal characters, allowing only {_ALLOWED}"
        )
