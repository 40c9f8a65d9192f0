"""Conditions of a query that narrow the range of messages to read.

    topic broker_name queue_id   = or IN           which queues
    queue_offset                 = < <= > >=       which offsets
    store_timestamp              < <= > >=         which offsets, found by time
    tags                         = or IN           which messages the broker sends

Conditions on offsets and queues are heeded exactly, so Spark need not check them again. Times have
milliseconds here and microseconds in Spark; tags are also compared by others: Spark checks both.
A broker finds a time by halving, so its clock must not have run backwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from cometmq.spark.brokers import BrokerSession
from cometmq.spark.offsets import QueueRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_PLACES = ("topic", "broker_name", "queue_id")
_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass
class Pushed:
    """What is left to read; all conditions hold together."""

    places: dict[str, frozenset[Any]] = field(default_factory=dict)
    """By column, the values wanted."""
    first_offset: int | None = None
    end_offset: int | None = None
    """The first offset that is not wanted any more."""
    first_ms: int | None = None
    end_ms: int | None = None
    """The first time that is not wanted any more."""
    tags: frozenset[str] | None = None
    """The tags wanted, of messages that have one."""

    def take(self, condition: Filter) -> bool:
        """Heed a condition if it narrows what is read; return whether it need not be checked."""
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(attribute) != 1 or not isinstance(condition, (In, *_COMPARISONS)):
            return False
        column, values = attribute[0], _values(condition)
        if column in _PLACES and values is not None:
            self.places[column] = values & self.places.get(column, values)
            return True
        if column == "tags" and values is not None:
            self._take_tags(values)
        elif column == "queue_offset" and isinstance(condition, _COMPARISONS):
            return self._take_offset(condition, condition.value)
        elif column == "store_timestamp" and isinstance(condition, _COMPARISONS):
            self._take_time(condition, condition.value)
        return False

    def narrowed(self, ranges: Iterable[QueueRange], session: BrokerSession) -> list[QueueRange]:
        """Return the parts of ranges that are wanted."""
        wanted = [self._by_offset(each) for each in ranges if self._is_wanted(each)]
        return self._by_time(wanted, session)

    def _is_wanted(self, each: QueueRange) -> bool:
        key = {"topic": each.key.topic, "broker_name": each.key.broker}
        found: dict[str, Any] = {**key, "queue_id": each.key.queue_id}
        return all(found[column] in values for column, values in self.places.items())

    def _by_offset(self, each: QueueRange) -> QueueRange:
        start = max(each.start, self.first_offset or 0)
        end = each.end if self.end_offset is None else min(each.end, self.end_offset)
        return each._replace(start=start, end=max(start, end))

    def _by_time(self, ranges: list[QueueRange], session: BrokerSession) -> list[QueueRange]:
        keys = [each.key for each in ranges if each.size]
        if self.first_ms is not None and keys:
            firsts = session.at_time(dict.fromkeys(keys, max(self.first_ms, 0)))
            ranges = [_from(each, firsts.get(each.key, each.start)) for each in ranges]
        if self.end_ms is not None and keys:
            ends = session.at_time(dict.fromkeys(keys, max(self.end_ms, 0)))
            ranges = [_up_to(each, ends.get(each.key, each.end)) for each in ranges]
        return ranges

    def _take_tags(self, values: frozenset[Any]) -> None:
        # A tag with bars or blanks around it would be read as an expression.
        if values and all(
            value and "|" not in value and value == value.strip() for value in values
        ):
            self.tags = values if self.tags is None else self.tags & values or self.tags

    def _take_offset(self, condition: Filter, value: int) -> bool:
        if isinstance(condition, (EqualTo, GreaterThan, GreaterThanOrEqual)):
            first = value + isinstance(condition, GreaterThan)
            self.first_offset = max(first, self.first_offset or 0)
        if isinstance(condition, (EqualTo, LessThan, LessThanOrEqual)):
            end = value + (not isinstance(condition, LessThan))
            self.end_offset = end if self.end_offset is None else min(end, self.end_offset)
        return True

    def _take_time(self, condition: Filter, value: datetime) -> None:
        milliseconds = (value - _EPOCH) // _MILLISECOND
        if isinstance(condition, (EqualTo, GreaterThan, GreaterThanOrEqual)):
            self.first_ms = max(milliseconds, self.first_ms or 0)
        if isinstance(condition, (EqualTo, LessThan, LessThanOrEqual)):
            end = milliseconds + 1
            self.end_ms = end if self.end_ms is None else min(end, self.end_ms)


def _values(condition: Filter) -> frozenset[Any] | None:
    if isinstance(condition, EqualTo):
        return frozenset({condition.value})
    return frozenset(condition.value) if isinstance(condition, In) else None


def _from(each: QueueRange, start: int) -> QueueRange:
    start = max(each.start, start)
    return each._replace(start=start, end=max(start, each.end))


def _up_to(each: QueueRange, end: int) -> QueueRange:
    return each._replace(end=max(each.start, min(each.end, end)))
