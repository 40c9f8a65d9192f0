"""The target queue of a message: of one that names no queue, and of one that waits.

A message that waits is in the schedule topic or the half topic. Its record is stored again in
another queue when it is due, committed, or retried.

    REAL_TOPIC := its topic        REAL_QID := the number of its queue, in decimal digits

Source: MessageConst.PROPERTY_REAL_TOPIC and PROPERTY_REAL_QUEUE_ID, RocketMQ 5.3.
"""

from __future__ import annotations

import re

from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError
from cometmq.model.topic import TOPICS_OF_WAITING
from cometmq.protocol.properties import marker, value_of
from cometmq.protocol.record import RecordParts
from cometmq.store import NewRecord

_REAL_TOPIC = marker(names.REAL_TOPIC.encode())
_REAL_QID = marker(names.REAL_QID.encode())
_QUEUE_ID = re.compile(r"[0-9]{1,9}")


def random_queue(count: int) -> int:
    """Return the number of a queue, out of so many, at random."""
    import random  # few sends need it, and it takes 80 KiB

    return random.randrange(count)


def target_properties(topic: str, queue_id: int) -> dict[str, str]:
    """Return the properties that name a target queue."""
    return {names.REAL_TOPIC: topic, names.REAL_QID: str(queue_id)}


def queue_id_of(text: str) -> int:
    """Return the number in REAL_QID; -1 for another text."""
    return int(text) if _QUEUE_ID.fullmatch(text) else -1


def check_target(topic: str, queue_text: str) -> int:
    """Return the number of a target queue.

    Args:
        topic: REAL_TOPIC; one that no client may send to is no target.
        queue_text: REAL_QID.

    Raises:
        InvalidMessageError: they name no target queue.
    """
    queue_id = queue_id_of(queue_text)
    if queue_id < 0 or not topic or topic in TOPICS_OF_WAITING:
        raise InvalidMessageError(
            f"expected a target topic and queue, met topic {topic[:300]!r}, queue"
            f" {queue_text[:80]!r}"
        )
    return queue_id


def waiting_target(properties: bytes) -> tuple[str, int]:
    """Return the target topic and queue of a record that waits.

    Raises:
        InvalidMessageError: it has none.
    """
    topic, queue_text = (
        (value_of(properties, name) or b"").decode("utf-8", "replace")
        for name in (_REAL_TOPIC, _REAL_QID)
    )
    return topic, check_target(topic, queue_text)


def stored_again(
    record: RecordParts,
    topic: str,
    queue_id: int,
    *,
    prepared_offset: int = 0,
    properties: bytes | None = None,
    sys_flag: int | None = None,
    store_host: bytes | None = None,
    reconsume_times: int | None = None,
) -> NewRecord:
    """Return what is appended to store a record again in another queue.

    Args:
        record: the record.
        topic, queue_id: the queue.
        prepared_offset: the log offset of the half message that is committed; 0 for none.
        properties, sys_flag, store_host, reconsume_times: new values; None keeps those of the
            record.
    """
    return NewRecord(
        topic,
        queue_id,
        record.body,
        record.properties if properties is None else properties,
        flag=record.flag,
        sys_flag=record.sys_flag if sys_flag is None else sys_flag,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        store_host=record.store_host if store_host is None else store_host,
        reconsume_times=(record.reconsume_times if reconsume_times is None else reconsume_times),
        prepared_offset=prepared_offset,
    )
