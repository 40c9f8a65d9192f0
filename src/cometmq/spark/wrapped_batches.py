"""Unwraps batches that are one record: each message becomes a record of its own.

It has the queue offset, the flag, the body and the properties of the message, and everything else
of the record of the batch. Source: MessageDecoder.decodeMessage, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.model.flags import SysFlag
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.record import RecordError, body_crc, encode_record, split_record
from cometmq.spark.endings import crc_problem

_KEPT = ~(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)


def unwrapped(record: bytes, *, crc: bool) -> bytes:
    """Return the messages of a batch as records that stand back to back.

    Args:
        record: of the batch.
        crc: whether to check the checksum of its body.

    Raises:
        RecordError: the checksum is wrong.
        InvalidMessageError: the body is no batch.
    """
    parts = split_record(record)
    if crc and (met := body_crc(parts.body)) != parts.body_crc:
        raise RecordError(crc_problem(met, parts.body_crc))
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
            sys_flag=parts.sys_flag & _KEPT,
            reconsume_times=parts.reconsume_times,
            prepared_offset=parts.prepared_offset,
        )
        for number, item in enumerate(decode_batch(parts.body))
    )
