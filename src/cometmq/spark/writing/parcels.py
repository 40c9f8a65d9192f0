"""Parcels: the messages for one queue in one request.

The two kinds of requests are those of DefaultMQProducerImpl, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cometmq.client._sending.outgoing import Outgoing
from cometmq.model import property_names as names
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.properties import encode_properties
from cometmq.spark.writing.destinations import Group
from cometmq.spark.writing.rows import Numbers, lengths

_BATCH_PROPERTIES = encode_properties({names.WAIT: "true"}).decode()


class Parcel(NamedTuple):
    """Messages for one queue, in the bytes of a batch."""

    topic: str
    queue: MessageQueue | None
    """None for any queue of the topic."""
    data: bytes
    """The items of a batch, back to back."""
    messages: int
    first_row: int
    last_row: int
    alone: bool = False
    """Whether it is one message that cannot travel as a batch."""

    def outgoing(self, topic: str) -> Outgoing:
        """Make it ready for the wire.

        Args:
            topic: the topic's name on the wire.
        """
        message = Message(topic=self.topic, body=b"")
        if not self.alone:
            code = RequestCode.SEND_BATCH_MESSAGE
            return Outgoing(
                topic, message, "", self.data, _BATCH_PROPERTIES, is_batch=True, code=code
            )
        (item,) = decode_batch(self.data)
        return Outgoing(topic, message, "", item.body, item.properties.decode(), flag=item.flag)


def parcels_of(group: Group, items: pa.Array, first_row: int, bytes_max: int) -> Iterator[Parcel]:
    """Cut a group of rows into parcels, in order.

    Args:
        group: the rows.
        items: every row of the record batch, encoded.
        first_row: the place of the record batch in its partition.
        bytes_max: the size of a parcel; a row that alone is larger travels alone.
    """
    own = items if len(group.rows) == len(items) else items.take(pa.array(group.rows))
    ends = np.cumsum(lengths(own))
    at = 0
    while at < len(own):
        begin = int(ends[at - 1]) if at else 0
        alone = group.alone or int(ends[at]) - begin > bytes_max
        stop = at + 1
        if not alone:
            stop = int(np.searchsorted(ends, begin + bytes_max, side="right"))
        yield Parcel(
            group.topic,
            group.queue,
            _data(own.slice(at, stop - at)),
            stop - at,
            first_row + int(group.rows[at]),
            first_row + int(group.rows[stop - 1]),
            alone,
        )
        at = stop


def together(parcels: list[Parcel]) -> Parcel:
    """Make one parcel of some that follow each other on the same way."""
    first = parcels[0]
    return first._replace(
        data=b"".join(parcel.data for parcel in parcels),
        messages=sum(parcel.messages for parcel in parcels),
        last_row=parcels[-1].last_row,
    )


def _data(items: pa.Array) -> bytes:
    """Give the bytes of items that lie back to back."""
    bounds: Numbers = np.frombuffer(items.buffers()[1], "<i4", len(items) + 1, 4 * items.offset)
    return bytes(memoryview(items.buffers()[2])[int(bounds[0]) : int(bounds[-1])])
