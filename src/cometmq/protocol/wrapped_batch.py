"""Batches that are one record: the messages in them.

A message has its own flag, body and properties, and the next queue offset; all other fields are
those of the record. Source: MessageDecoder.decodeMessage, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.batch import BatchItem, decode_batch
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import body_crc, encode_record, split_record

WRAPPED: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
"""The flags of a record that is a batch."""
_NOT_KEPT: Final = WRAPPED | int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)


def unwrapped(message: StoredMessage, added: Mapping[str, str]) -> list[StoredMessage]:
    """Return the messages of a batch that is one record.

    Args:
        message: the record.
        added: properties that the messages get besides their own.

    Raises:
        InvalidMessageError: the body is no batch.
        CompressionError: the body cannot be decompressed.
    """
    items = decode_batch(message.body)
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


def unwrapped_records(record: bytes) -> bytes:
    """Return the messages of a batch as records that stand back to back.

    Raises:
        RecordError: the bytes are no record.
        InvalidMessageError: the body is no batch.
    """
    parts = split_record(record)
    return b"".join(
        encode_record(
            parts.topic.encode(),
            item.body,
            item.properties,
            queue_id=parts.queue_id,
            queue_offset=parts.queue_offset + number,
            log_offset=parts.log_offset,
            born_time_ms=parts.born_time_ms,
            born_host=parts.born_host,
            store_time_ms=parts.store_time_ms,
            store_host=parts.store_host,
            flag=item.flag,
            sys_flag=parts.sys_flag & ~_NOT_KEPT,
            reconsume_times=parts.reconsume_times,
            prepared_offset=parts.prepared_offset,
        )
        for number, item in enumerate(decode_batch(parts.body))
    )
