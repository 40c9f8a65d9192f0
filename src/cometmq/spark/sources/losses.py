"""Handles offsets that are out of range: expired, or beyond the end of the queue.

    what is asked                     usually          with failOnDataLoss=false
    start < min, expired              DataLossError    begin at min
    a new queue with min > 0          DataLossError    begin at min
    queue created again               DataLossError    begin at min
    queue lost its end                DataLossError    begin at the first message stored since
    start > max, not known which      DataLossError    begin at min
    end > max, truncated              DataLossError    end at max

`cometmq.spark.sources.queue_identity` tells a queue that was created again from one that lost its
end, if the checkpoint has store times.

Bounds that a replica told while its master did not answer show no loss: the range stays as it is,
and the task that reads it asks the master again. Each loss that is gone over is one warning in the
log, with queue and offsets.

The rule is that of Spark's Kafka source (reportDataLoss).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.spark.errors import DataLossError
from cometmq.spark.offsets import Bounds, QueueKey, QueueRange

if TYPE_CHECKING:
    from cometmq.spark.sources.queue_identity import Change

logger = logging.getLogger(__name__)

_ADVICE = "failOnDataLoss=false continues with the remaining messages"


class Losses:
    """Fails at a loss, or goes over it. Every method raises `DataLossError` if this fails.

    Args:
        fail: whether to fail.
        silent: whether to go over losses without a word, since they were reported before.
    """

    def __init__(self, *, fail: bool, silent: bool = False) -> None:
        self.fail = fail
        self._silent = silent
        self.met = 0
        """How many were gone over."""
        self.messages: dict[QueueKey, int] = {}
        """Lost messages by queue, as far as their number is known."""

    def report(self, text: str, key: QueueKey | None = None, messages: int = 0) -> None:
        """Fail, or say it in the log.

        Args:
            text: what is lost.
            key: the queue.
            messages: how many messages are lost that were not read; 0 if that is not known.
        """
        if self.fail:
            raise DataLossError(f"{text}; {_ADVICE}")
        if self._silent:
            return
        self.met += 1
        if key is not None and messages > 0:
            self.messages[key] = self.messages.get(key, 0) + messages
        logger.warning("messages are lost losses=%d messages=%d %s", self.met, messages, text)

    def begin(self, key: QueueKey, start: int, limits: Bounds, named_by: str = "") -> int:
        """Return where a queue can be read from, for one that should be read from ``start``.

        Args:
            key: the queue.
            start: the offset.
            limits: the bounds of the queue.
            named_by: the option or the group that named ``start``; empty if it was an offset of
                the queue before.
        """
        if limits.min <= start <= limits.max or not limits.master:
            return start
        expired = max(limits.min - start, 0)
        if expired:
            what = f"offsets from {start} have expired"
        elif named_by:
            what = f"offsets from {start}, as in {named_by}, do not exist"
        else:
            what = (
                f"offsets from {start} do not exist: the topic was created again, or the broker"
                " lost the end of its log"
            )
        self.report(f"{key}: {what}; the queue has {limits.min} to {limits.max}", key, expired)
        return limits.min

    def added(self, key: QueueKey, limits: Bounds) -> int:
        """Return the oldest message of a queue that was added while the query ran."""
        if limits.min > 0:
            self.report(
                f"{key}: a new queue, offsets 0 to {limits.min} have expired;"
                f" the queue has {limits.min} to {limits.max}",
                key,
                limits.min,
            )
        return limits.min

    def changed(
        self, key: QueueKey, offset: int, change: Change, limits: Bounds, unread: int = 0
    ) -> int:
        """Return where a queue is read from that does not hold what was read before an offset.

        Args:
            key: the queue.
            offset: the next offset of the query.
            change: what happened to the queue.
            limits: the bounds of the queue.
            unread: how many messages it had at and behind the offset, as far as known.
        """
        if change.created_again:
            what = "the topic was created again, or the broker lost its messages"
        else:
            what = (
                "the broker lost the end of its log, with the messages at offsets"
                f" {change.start} to {offset}"
            )
        self.report(
            f"{key}: {what}; the query is at offset {offset}, the queue has {limits.min} to"
            f" {limits.max} and is read from {change.start}",
            key,
            unread,
        )
        return change.start

    def changed_log(self, name: str, place: int, change: Change, end: int) -> None:
        """Report a log that does not hold what was read before an offset."""
        what = "it was created again" if change.created_again else "it lost its last records"
        self.report(
            f"log of {name}: it was read up to byte {place} and ends at {end} now: {what};"
            f" it is read from byte {change.start}"
        )

    def remaining(self, each: QueueRange, change: Change, limits: Bounds) -> QueueRange:
        """Return what a changed queue still has of a range that was planned before."""
        self.changed(each.key, each.end, change, limits)
        if change.created_again:
            return each._replace(end=each.start)
        start = self.begin(each.key, each.start, limits) if each.start < limits.min else each.start
        return each._replace(start=start, end=max(start, min(change.start, each.end)))

    def within(self, each: QueueRange, limits: Bounds) -> QueueRange:
        """Return the part of a range that a queue has.

        A range that ends before it begins was planned by an older version, when the queue had been
        created again: it begins with the queue. One that lies behind the queue's end was planned
        before: nothing of it is left, and the batch that is planned next begins with the queue.
        """
        if not limits.master and each.end >= each.start:
            return each
        if each.end < each.start:
            self.report(
                f"{each.key}: the topic was created again, offsets from {each.start} do not exist"
            )
            each = each._replace(start=limits.min)
        elif each.start > limits.max:
            self.begin(each.key, each.start, limits)
            return each._replace(end=each.start)
        start = self.begin(each.key, each.start, limits)
        return each._replace(start=start, end=max(start, self.end(each, limits)))

    def end(self, each: QueueRange, limits: Bounds) -> int:
        """Return where a range ends, which is not behind its queue's end."""
        if each.end <= limits.max or not limits.master:
            return each.end
        lost = each.end - max(limits.max, each.start)
        self.report(f"{each}: the queue ends at {limits.max}", each.key, lost)
        return limits.max
