"""The rows of one range of a queue: a task of the format ``rocketmq``.

Short answers of brokers are decoded together: RocketMQ's have 32 messages. A broker compares hashes
of tags only; the tags themselves are compared here, and keys are looked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from cometmq.client.filters import Filter
from cometmq.model.errors import ConfigError
from cometmq.spark.batches import RecordDecoder
from cometmq.spark.brokers import BrokerSession
from cometmq.spark.brokers.times import READ_GROUP
from cometmq.spark.compat import exempt_loaded_modules
from cometmq.spark.errors import BadRecordError, DataLossError, OptionError, RangeError
from cometmq.spark.offsets import Bounds, QueueKey, QueueRange
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.payloads.plan import PayloadPlan, PayloadRows
from cometmq.spark.schema import Column
from cometmq.spark.sources.filters import RowFilter
from cometmq.spark.sources.losses import Losses

Connect = Callable[[ConnectionOptions], BrokerSession]

DECODED_TOGETHER_BYTES = 1 << 20
SHORT_BYTES = 128 * 1024
"""Longer answers are decoded alone: putting them together would copy them."""


class RangeReader:
    """Reads ranges of queues into batches of the asked columns.

    Args:
        options, columns, connect, payload: as `TopicReader` has them.
        away_s: how long to wait for a broker that is away, if that is longer than the timeout of
            pulls; ``math.inf`` for no limit.
    """

    def __init__(
        self,
        options: TopicReadOptions,
        columns: Sequence[Column],
        connect: Connect,
        payload: PayloadPlan | None = None,
        away_s: float = 0.0,
    ) -> None:
        self._options = options
        self._away_s = away_s
        self._payload = PayloadRows(columns, payload)
        self._connect = connect
        self._wanted, self._row_filter = _filters_of(options)

    def read(self, each: QueueRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; the same rows in the same order at every call.

        Raises:
            RangeError: the messages did not come in time, or a broker denied them.
            DataLossError: they are not there any more, and that is an error.
            BadRecordError: a broker sent what is no record.
            UnreachableError: nobody served the queue.
        """
        exempt_loaded_modules()
        decoder = RecordDecoder(
            self._row_filter.with_needed(self._payload.needed),
            broker_name=each.key.broker,
            decompress=self._options.decompress,
            max_rows=self._options.batch_rows,
            max_bytes=self._options.batch_bytes,
        )
        most = min(DECODED_TOGETHER_BYTES, self._options.batch_bytes)
        for data in _joined(self._answers(each), most):
            yield from self._rows(decoder, data, each)

    def _rows(
        self, decoder: RecordDecoder, data: bytes, each: QueueRange
    ) -> Iterator[pa.RecordBatch]:
        try:
            for batch in decoder.batches(
                data, 0, len(data), first_offset=each.start, end_offset=each.end
            ):
                kept = self._row_filter.kept(batch)
                if kept.num_rows:
                    yield self._payload.complete(kept)
        except BadRecordError as error:
            raise BadRecordError(f"{each}: in what the broker sent, {error}") from error

    def _answers(self, each: QueueRange) -> Iterator[bytes]:
        """Yield what brokers answer; go on behind what expires meanwhile, if that is allowed.

        Raises:
            RangeError: a broker denied messages that the queue's master has.
        """
        losses = Losses(fail=self._options.fail_on_data_loss)
        session = self._connect(self._options)
        while each.size:
            try:
                yield from self._asked(session, each)
            except DataLossError as error:
                limits = self._limits(session, each.key)
                if limits is not None and (limits.min <= each.start or not limits.master):
                    raise RangeError(
                        f"{each}: not lost, the queue has offsets {limits.min} to {limits.max};"
                        f" the read ended with: {error}"
                    ) from error
                losses.report(str(error))
                if limits is None:
                    return
                each = each._replace(start=min(limits.min, each.end))
            else:
                return

    def _limits(self, session: BrokerSession, key: QueueKey) -> Bounds | None:
        """Return the bounds of a queue, None if it is no longer readable."""
        if self._away_s > self._options.pull_timeout_ms / 1000:
            session = session.retrying(self._away_s)
        return session.bounds([key], gone=set()).get(key)

    def _asked(self, session: BrokerSession, each: QueueRange) -> Iterator[bytes]:
        options = self._options
        return session.read(
            each,
            filter=self._wanted,
            batch_size=options.pull_batch_size,
            timeout_ms=options.pull_timeout_ms,
            group=options.reading_group or READ_GROUP,
            away_s=self._away_s,
        )


def _filters_of(options: TopicReadOptions) -> tuple[Filter, RowFilter]:
    """Return the filter of brokers, and the filter of the rows that they send.

    Raises:
        OptionError: an expression is none, or no key is named.
    """
    wanted = Filter.tags()
    try:
        if options.filter_sql is not None:
            wanted = Filter.sql(options.filter_sql)
        elif options.filter_tags is not None:
            wanted = Filter.tags(options.filter_tags)
    except ConfigError as error:
        raise OptionError(f"option filter.tags or filter.sql: {error}") from None
    return wanted, RowFilter.of(wanted.wanted_tags, options.filter_keys)


def _joined(answers: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Put short answers together until they have ``most`` bytes."""
    parts: list[bytes] = []
    size = 0
    for part in answers:
        if not parts and len(part) >= SHORT_BYTES:
            yield part
            continue
        parts.append(part)
        size += len(part)
        if size >= most:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)
