"""The records of a trace, and the text they are written as.

    text   := { record }
    record := record type { 0x01 field } 0x02

    Pub            | time | region | group | topic | message id | tags | keys | store host
                   | body bytes | cost ms | message kind | offset message id | success
                   [ | client host ]
    SubBefore      | time | region | group | request id | message id | retries | keys
    SubAfter       | request id | message id | cost ms | success | keys | end [ | time | group ]
    EndTransaction | time | region | group | topic | message id | tags | keys | store host
                   | message kind | transaction id | state | from check
    Recall         | time | region | group | topic | message id | success

Nothing is escaped; what is missing is written as ``null``. Records of type Pub without the offset
message id and without the success are read as well. In the cloud form SubAfter ends with ``end``.

Source: TraceDataEncoder, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cometmq.client.handlers import LocalState
from cometmq.client.hooks import ConsumeEnd, SendKind
from cometmq.model.errors import CometError

FIELD_END = "\x01"
RECORD_END = "\x02"
_NULL = "null"


class TraceError(CometError):
    """A trace record has the wrong format."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A message, or a batch, was stored."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str
    body_bytes: int
    cost_ms: int
    kind: SendKind = SendKind.NORMAL
    offset_message_id: str = ""
    success: bool = True
    client_host: str = ""
    """Read if present, never written."""


@dataclass(frozen=True, slots=True)
class ConsumeBefore:
    """A handler is about to receive a message."""

    time_ms: int
    region: str | None
    group: str
    request_id: str
    """The id of the handler call; the record of its end has it, too."""
    message_id: str
    retries: int
    keys: str | None


@dataclass(frozen=True, slots=True)
class ConsumeAfter:
    """A handler's call has ended."""

    request_id: str
    message_id: str
    cost_ms: int
    """The time of the whole call, divided by its messages."""
    success: bool
    keys: str | None
    end: ConsumeEnd = ConsumeEnd.SUCCESS
    time_ms: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """The end of a transaction was sent to a broker."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str
    kind: SendKind
    transaction_id: str | None
    state: LocalState
    from_check: bool


@dataclass(frozen=True, slots=True)
class Recall:
    """A timer message was recalled."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    success: bool


Record = Publish | ConsumeBefore | ConsumeAfter | EndTransaction | Recall


def encode_trace_record(record: Record, *, cloud: bool = False) -> str:
    """Encode one record, including its end."""
    return FIELD_END.join(map(_text, _fields(record, cloud))) + RECORD_END


def decode_records(text: str) -> list[Record]:
    """Decode the records of a trace message; unknown record types are skipped.

    Raises:
        TraceError: a record of a known type is cut short, or has an invalid field.
    """
    rows = [row.split(FIELD_END) for row in text.split(RECORD_END) if row]
    return [_decoded(row) for row in rows if row[0] in _READERS]


def _fields(record: Record, cloud: bool) -> Sequence[object]:
    match record:
        case Publish(time_ms, region, group, topic, message_id, tags, keys, host, size, cost):
            head = ("Pub", time_ms, region, group, topic, message_id, tags, keys, host, size, cost)
            return (*head, int(record.kind), record.offset_message_id, record.success)
        case ConsumeBefore(time_ms, region, group, request_id, message_id, retries, keys):
            return ("SubBefore", time_ms, region, group, request_id, message_id, retries, keys)
        case ConsumeAfter(request_id, message_id, cost, success, keys, end):
            row = ("SubAfter", request_id, message_id, cost, success, keys, int(end))
            return row if cloud else (*row, record.time_ms, record.group)
        case EndTransaction(time_ms, region, group, topic, message_id, tags, keys, host):
            start = ("EndTransaction", time_ms, region, group, topic, message_id, tags, keys, host)
            rest = (int(record.kind), record.transaction_id, record.state.value, record.from_check)
            return (*start, *rest)
        case Recall(time_ms, region, group, topic, message_id, success):
            return ("Recall", time_ms, region, group, topic, message_id, success)


def _text(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _decoded(row: list[str]) -> Record:
    read, fields_min = _READERS[row[0]]
    if len(row) < fields_min:
        raise TraceError(f"a {row[0]} record of {len(row)} fields: at least {fields_min} expected")
    try:
        return read(row)
    except (ValueError, KeyError) as error:
        raise TraceError(f"a {row[0]} record with a field that cannot be read: {error}") from None


def _optional(text: str) -> str | None:
    return None if text == _NULL else text


def _is_true(text: str) -> bool:
    return text == "true"


def _message_kind(text: str) -> SendKind:
    return SendKind(int(text))


_Reader = Callable[[str], Any]
_HEAD: tuple[_Reader, ...] = (int, _optional, str, str, str, _optional, _optional, str)
"""Read the first fields of Pub and EndTransaction, from the time to the store host."""


def _values(row: list[str], *readers: _Reader) -> list[Any]:
    """Read the first fields of a record, each in its own way."""
    return [read(text) for read, text in zip(readers, row[1:], strict=False)]


def _publish(row: list[str]) -> Publish:
    fields = len(row)
    success = fields == _PUBLISH_FIELDS_MIN or _is_true(row[13 if fields > 13 else 12])
    values = _values(row, *_HEAD, int, int, _message_kind)
    values += [row[12] if fields > 13 else "", success, row[14] if fields > 14 else ""]
    return Publish(*values)


def _before(row: list[str]) -> ConsumeBefore:
    return ConsumeBefore(*_values(row, int, _optional, str, str, str, int, _optional))


def _after(row: list[str]) -> ConsumeAfter:
    values = _values(row, str, str, int, _is_true, _optional)
    if len(row) > _AFTER_FIELDS_MIN:
        values.append(ConsumeEnd(int(row[6])))
    if len(row) > _AFTER_FIELDS_MIN + 2:
        values += [int(row[7]), row[8]]
    return ConsumeAfter(*values)


def _end(row: list[str]) -> EndTransaction:
    return EndTransaction(*_values(row, *_HEAD, _message_kind, _optional, LocalState, _is_true))


def _recall(row: list[str]) -> Recall:
    return Recall(*_values(row, int, _optional, str, str, str, _is_true))


_PUBLISH_FIELDS_MIN = 12
_AFTER_FIELDS_MIN = 6
_READERS: dict[str, tuple[Callable[[list[str]], Record], int]] = {
    "Pub": (_publish, _PUBLISH_FIELDS_MIN),
    "SubBefore": (_before, 8),
    "SubAfter": (_after, _AFTER_FIELDS_MIN),
    "EndTransaction": (_end, 13),
    "Recall": (_recall, 7),
}
