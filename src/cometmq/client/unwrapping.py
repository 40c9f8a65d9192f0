"""Takes batches apart that a broker stores as one message, as 5.x topics of the batch kind have.

    wrapped message := a record with INNER_BATCH and NEED_UNWRAP, whose body is that of a batch

The messages inside have consecutive offsets, the first that of the wrapped one.

Source: MessageDecoder.decodeMessage and PullAPIWrapper.processPullResult, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cometmq.model.errors import InvalidMessageError
from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.batch import BatchItem, decode_batch
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import SYS_FLAG_AT, body_crc

log = logging.getLogger(__name__)

_WRAPPED = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
_LAST_BYTE_AT = SYS_FLAG_AT + 3


def unwrap_all(
    messages: list[StoredMessage], records: bytes, added: Mapping[str, str]
) -> list[StoredMessage]:
    """Put the messages of wrapped batches in their place.

    Args:
        messages: as they came.
        records: the records they were cut from, to look at flags without decoding them.
        added: properties that messages from inside a batch get besides their own.
    """
    at, wrapped = _LAST_BYTE_AT, False
    for message in messages:
        if records[at] & _WRAPPED == _WRAPPED:
            wrapped = True
            break
        at += message.size_bytes
    if not wrapped:
        return messages
    return [inner for message in messages for inner in _unwrapped(message, added)]


def _unwrapped(message: StoredMessage, added: Mapping[str, str]) -> list[StoredMessage]:
    if message.sys_flag & _WRAPPED != _WRAPPED:
        return [message]
    try:
        items = decode_batch(message.body)
    except InvalidMessageError as error:
        queue, offset = message.queue, message.queue_offset
        log.warning("cannot unwrap a batch queue=%s offset=%d error=%s", queue, offset, error)
        return [message]
    return [_inner(message, number, item, added) for number, item in enumerate(items)]


def _inner(
    message: StoredMessage, number: int, item: BatchItem, added: Mapping[str, str]
) -> StoredMessage:
    return StoredMessage(
        topic=message.topic,
        body=item.body,
        properties={**decode_properties(item.properties), **added},
        queue_id=message.queue_id,
        queue_offset=QueueOffset(message.queue_offset + number),
        log_offset=message.log_offset,
        flag=item.flag,
        sys_flag=0,
        born_time_ms=message.born_time_ms,
        born_host=message.born_host,
        store_time_ms=message.store_time_ms,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
        body_crc=body_crc(item.body),
        size_bytes=len(item.body) + len(item.properties),
        offset_message_id=message.offset_message_id,
        broker_name=message.broker_name,
    )
