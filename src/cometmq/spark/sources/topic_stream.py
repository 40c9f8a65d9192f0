"""Streams of topics: the range of each micro-batch, and how a stream resumes after a failure.

    first batch     $start  → $from and offsets     the end says where the batch begins
    any other       offsets → offsets               never less than before, but for a queue that was
                                                    created again or lost its end, which $from names
    no news         the same text again, for Spark compares texts

A broker that does not respond is away: its queues keep their offsets, and the others go on. A task
whose broker is away waits, because the range of its batch is in the checkpoint. A batch without
rows begins and ends the time in which a broker is away, so that the progress of the query shows it.

Queues that the options do not choose any more are left out of the next batch, with a line in the
log: their messages are not lost.

One reader lives on the driver as long as a query runs, and remembers bounds, the target of
AvailableNow and when a batch was last due; the readers of tasks are other objects. What Spark must
be able to repeat after a failure depends on the two documents alone.

The rules are those of Spark's Kafka source (KafkaMicroBatchStream).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from cometmq.spark.brokers import Away, BrokerSession
from cometmq.spark.brokers.times import READ_GROUP
from cometmq.spark.compat import ReadAllAvailable, ReadLimit, StreamReader
from cometmq.spark.errors import GoneError, SourceError, UnreachableError
from cometmq.spark.offsets import (
    AWAY,
    FROM,
    LOST,
    NEXT,
    STORED,
    Bounds,
    Positions,
    QueueKey,
    QueueRange,
    begins_of,
    first_end,
    from_json,
    is_start,
    positions_in,
    to_json,
    without_start,
)
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.schema import Column
from cometmq.spark.sources.batch_limits import cut, read_limit
from cometmq.spark.sources.bounds import LATEST, of_masters, start_of
from cometmq.spark.sources.losses import Losses
from cometmq.spark.sources.queue_identity import Change, QueueIdentity
from cometmq.spark.sources.ranges import Connect
from cometmq.spark.sources.topic_batch import TopicReader
from cometmq.system.clock import Clock

logger = logging.getLogger(__name__)

Limits = Mapping[QueueKey, Bounds]

PROBE_S = 0.5
"""The pause before a broker that is away is asked again."""
PROBE_PART = 3
"""The pause is longer if that takes time: this many times as long."""


class TopicStreamReader(TopicReader, StreamReader):
    """Plans micro-batches on the driver; the arguments are those of `TopicReader`.

    ``clock`` tells when a batch is due.
    """

    def __init__(
        self,
        options: TopicReadOptions,
        columns: Sequence[Column],
        connect: Connect,
        clock: Clock | None = None,
        payload: PayloadPlan | None = None,
    ) -> None:
        super().__init__(options, columns, connect, payload, options.broker_away_fail_after_s)
        self._clock = clock or Clock()
        self._start = start_of(options, LATEST)
        self._losses = Losses(fail=options.fail_on_data_loss)
        self._bounded = False
        self._target: Positions | None = None
        self._newest: Positions | None = None
        self._away: Away = {}
        self._next: Positions = {}
        self._probe_s = -math.inf
        self._planned: tuple[Positions, Limits] | None = None
        self._last_batch_s: float | None = None

    # --- Spark asks, on the driver --------------------------------------------------------------

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember where queues end now: this run goes no further.

        Raises:
            UnreachableError: a broker did not respond, and the options say that this ends the
                query at once; or no name server did.
        """
        self._bounded = True
        with contextlib.suppress(GoneError):
            # Where a topic's only broker is away, a checkpoint may know the queues.
            keys = self._selection.queues(self._session)
            away: Away = {}
            fails = self._options.broker_away_fail_after_ms == 0
            self._target = _maxima(self._planning.bounds(keys, away=None if fails else away))
            for broker, missing in _by_broker(away):
                text = "a broker is away, this run reads nothing of it broker=%s queues=%d error=%s"
                logger.warning(text, broker, len(missing), away[missing[0]])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch."""
        return read_limit(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start as the user gave it; what that means is found out later."""
        return self._start.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends, which is ``start`` if there is nothing for it.

        Raises:
            DataLossError: messages behind ``start`` are not there any more, and that is an error.
            UnreachableError: servers did not answer for long.
        """
        return self._first_end(limit) if is_start(start) else self._next_end(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the newest state of the source, for the progress of the query.

        That is where queues ended, and what `cometmq.spark.monitoring` makes figures of.
        """
        if self._newest is None:
            return None
        more = {LOST: self._losses.messages, NEXT: self._next}
        return {name: to_json(each) for name, each in more.items() if each} | to_json(self._newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a batch, the largest first.

        Raises:
            DataLossError: messages of the batch are not there any more, and that is an error.
            UnreachableError: servers did not answer for long.
        """
        return self._partitions(self._ranges(start, end))

    def commit(self, end: dict[str, Any]) -> None:
        """Commit what is finished to the group, if one is to show it; trouble is only logged."""
        if not self._options.commit_to_group or is_start(end):
            return
        offsets = {key: offset for key, offset in _known(end).items() if key not in self._away}
        silent: Away = {}
        try:
            self._planning.commit(self._options.group or "", offsets, away=silent)
        except SourceError as error:
            self._log_no_commit(str(error))
        if silent:
            self._log_no_commit(next(iter(silent.values())))

    def _log_no_commit(self, error: str) -> None:
        logger.warning("cannot commit offsets to the group group=%s %s", self._options.group, error)

    # --- how ------------------------------------------------------------------------------------

    @property
    def _session(self) -> BrokerSession:
        return self._connect(self._options)

    @property
    def _planning(self) -> BrokerSession:
        """A session that gives a broker up soon, if the query goes on without it."""
        options = self._options
        if options.broker_away_fail_after_ms == 0:
            return self._session
        return self._session.retrying(options.broker_away_after_ms / 1000, retries=options.retries)

    def _identity(self, session: BrokerSession) -> QueueIdentity:
        return QueueIdentity(session, self._options.reading_group or READ_GROUP)

    def _first_end(self, limit: ReadLimit) -> dict[str, Any]:
        """Return where the first batch begins and ends; all chosen queues have to be there."""
        bounds = self._session.bounds(self._selection.queues(self._session))
        self._look(bounds, {})
        known = self._start.resolve(self._session, bounds)
        ranges = [
            self._range(
                key, self._losses.begin(key, known[key], limits, self._start.naming(key)), limits
            )
            for key, limits in sorted(bounds.items())
        ]
        self._last_batch_s = self._clock.monotonic()
        starts = {each.key: each.start for each in ranges}
        ends = starts
        if self._start.repeatable:
            ends = self._ends(ranges, limit, self._session, bounds, None)
        identity = self._identity(self._session)
        stored = identity.stored(ends, bounds)
        self._look_at_next(ends, {}, identity.following)
        return first_end(to_json(starts), self._ends_at(ends, stored, bounds))

    def _next_end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the batch behind another one ends."""
        given, stored, since = _known(start), positions_in(start, STORED), positions_in(start, AWAY)
        known = {key: offset for key, offset in given.items() if self._selection.takes(key)}
        session, identity = self._planning, self._identity(self._planning)
        bounds, away = self._bounds(session, known, since)
        bounds = of_masters(session, bounds, set(bounds) - set(known), away)
        changes = identity.changes(known, stored, bounds, away)
        bounds = {key: limits for key, limits in bounds.items() if key not in away}
        unread = self._unread(known)
        self._look(bounds, known)
        ranges = self._news(known, bounds, changes, unread)
        begins = {each.key: each.start for each in ranges if known.get(each.key) != each.start}
        held = self._hold(known, since, away)
        is_due = bool(changes or begins) or held != since
        is_due = is_due or not given.keys() <= bounds.keys() | held.keys()
        if self._holds_back(ranges, is_due=is_due):
            return start
        silent: Away = {}
        ends = self._ends(ranges, limit, session, bounds, silent)
        ends |= {key: known[key] for key in held}
        if ends == known and not is_due:
            return start
        self._log_dropped(given, known)
        same = {key: offset for key, offset in known.items() if key not in changes}
        times = identity.stored_since(same, stored, ends, bounds, silent)
        for key in silent:  # its broker went away just now, the next batch will name it
            del ends[key]
            begins.pop(key, None)
            ends |= {key: known[key]} if key in known else {}
            times |= {key: stored[key]} if key in stored else {}
        self._look_at_next(ends, known, identity.following)
        end = self._ends_at(ends, times, bounds)
        if held:
            end = {AWAY: to_json(held), **end}
        return {FROM: to_json(begins), **end} if begins else end

    def _log_dropped(self, given: Positions, known: Positions) -> None:
        for key in sorted(given.keys() - known.keys()):
            logger.warning(
                "no longer subscribed, it is not read from this batch on: %s, read up to offset %d",
                key,
                given[key],
            )

    def _bounds(
        self, session: BrokerSession, known: Positions, since: Positions
    ) -> tuple[Limits, Away]:
        """Ask for the bounds of the queues that a query has, and of those that are new.

        Queues that are no longer readable are reported and left out. Brokers that are away are
        asked again after a pause, which is longer than the others have to wait for them.

        Returns:
            The bounds, and the queues whose broker does not respond, which have none.
        """
        try:
            keys = set(known) | set(self._selection.queues(session, gone=set()))
        except UnreachableError as error:  # no name server responds
            return {}, dict.fromkeys(known, str(error))
        began_s = self._clock.monotonic()
        probed = known.keys() & since.keys() if began_s >= self._probe_s else frozenset()
        skipped = known.keys() & since.keys() - probed
        gone: set[QueueKey] = set()
        away: Away = dict.fromkeys(probed, "")
        bounds = session.bounds(keys - skipped, gone=gone, away=away) if keys - skipped else {}
        if away.keys() & probed:
            now_s = self._clock.monotonic()
            self._probe_s = now_s + max(PROBE_S, PROBE_PART * (now_s - began_s))
        unread = self._unread(known)
        for key in sorted(gone & set(known)):
            text = f"{key}: no longer readable, read up to offset {known[key]}"
            self._losses.report(text, key, unread[key])
        return bounds, away | {key: self._away.get(key, "") for key in skipped}

    def _hold(self, known: Positions, since: Positions, away: Away) -> Positions:
        """Return the queues that keep their offsets, and since when their brokers are away.

        Raises:
            UnreachableError: a broker is away for longer than the options allow.
        """
        now_ms = self._clock.now_ms()
        held = {key: since.get(key, now_ms) for key in sorted(away) if key in known}
        limit_ms = self._options.broker_away_fail_after_ms
        for key, since_ms in held.items():
            if limit_ms is not None and now_ms - since_ms >= limit_ms:
                raise UnreachableError(
                    f"{key}: its broker has been away for {max(now_ms - since_ms, 0)} ms, expected"
                    f" less than brokerAway.failAfterMs={limit_ms}: {away[key]}"
                )
        for broker, keys in _by_broker(held.keys() - self._away.keys()):
            text = "a broker is away, its queues keep their offsets broker=%s queues=%d error=%s"
            logger.warning(text, broker, len(keys), away[keys[0]])
        for broker, keys in _by_broker(self._away.keys() - held.keys()):
            logger.warning("a broker is there again broker=%s queues=%d", broker, len(keys))
        self._away = {key: away[key] for key in held}
        return held

    def _look_at_next(self, ends: Positions, known: Positions, following: Positions) -> None:
        """Remember when the messages were stored that come next, where there are some."""
        newest = self._newest or {}
        before = {key: at for key, at in self._next.items() if ends.get(key) == known.get(key)}
        found = before | following
        self._next = {
            key: found[key]
            for key, end in ends.items()
            if key in found and end < newest.get(key, end)
        }

    def _look(self, bounds: Limits, known: Positions) -> None:
        """Remember where queues end, for reports and as the target if there is none yet.

        A queue whose broker is away ends where it did at the last look, as far as is known.
        """
        before = self._newest or {}
        held = {key: max(offset, before.get(key, 0)) for key, offset in known.items()}
        self._newest = held | _maxima(bounds)
        if self._bounded and self._target is None:
            self._target = _maxima(bounds)

    def _unread(self, known: Positions) -> dict[QueueKey, int]:
        """Return how many messages each queue had behind its offset at the last look."""
        newest = self._newest or {}
        return {key: max(newest.get(key, 0) - offset, 0) for key, offset in known.items()}

    def _news(
        self,
        known: Positions,
        bounds: Limits,
        changes: Mapping[QueueKey, Change],
        unread: Mapping[QueueKey, int],
    ) -> list[QueueRange]:
        """Return what there is behind the known offsets; a queue that is new begins at its min.

        Raises:
            DataLossError: a queue does not have what is behind its offset.
        """
        return [
            self._range(key, self._begin(key, known, limits, changes.get(key), unread), limits)
            for key, limits in sorted(bounds.items())
            if self._target is None or key in self._target or key in known
        ]

    def _begin(
        self,
        key: QueueKey,
        known: Positions,
        limits: Bounds,
        change: Change | None,
        unread: Mapping[QueueKey, int],
    ) -> int:
        if key not in known:
            return self._losses.added(key, limits)
        if change is not None:
            return self._losses.changed(key, known[key], change, limits, unread[key])
        return self._losses.begin(key, known[key], limits)

    def _range(self, key: QueueKey, start: int, limits: Bounds) -> QueueRange:
        end = limits.max
        if self._target is not None:
            end = min(end, self._target.get(key, start))
        return QueueRange(key, start, max(start, end))

    def _holds_back(self, ranges: Sequence[QueueRange], *, is_due: bool) -> bool:
        """Whether to wait for more messages, and not for too long."""
        now_s, last_s = self._clock.monotonic(), self._last_batch_s
        size = sum(each.size for each in ranges)
        least = self._options.min_offsets_per_trigger
        waited = last_s is None or now_s - last_s >= self._options.max_trigger_delay_s
        waited = waited or is_due or self._bounded
        if least is not None and size < least and not waited:
            return True
        self._last_batch_s = now_s
        return False

    def _ends(
        self,
        ranges: Sequence[QueueRange],
        limit: ReadLimit,
        session: BrokerSession,
        bounds: Limits,
        away: Away | None,
    ) -> Positions:
        """Return where a batch ends; Spark passes no limit if the trigger is to read all."""
        if not isinstance(limit, ReadAllAvailable):
            group = self._options.reading_group or READ_GROUP
            ranges = cut(ranges, self._options, session, group, bounds, away)
        return {each.key: each.end for each in ranges}

    def _ends_at(self, ends: Positions, stored: Positions, bounds: Limits) -> dict[str, Any]:
        self._planned = ends, bounds
        return ({STORED: to_json(stored)} if stored else {}) | to_json(ends)

    def _ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[QueueRange]:
        ends = _known(end)
        begins = begins_of(start, end, _known)
        if begins == ends:
            return []
        if self._planned is not None and self._planned[0] == ends:
            return self._ranges_of_plan(begins, ends, self._planned[1])
        return self._ranges_again(begins, ends, positions_in(end, STORED))

    def _ranges_of_plan(
        self, begins: Positions, ends: Positions, bounds: Limits
    ) -> list[QueueRange]:
        """Return the ranges of a batch that was planned just now, with the bounds of its plan.

        What is lost was reported when it was planned.
        """
        losses = Losses(fail=False, silent=True)
        return [
            losses.within(QueueRange(key, begins[key], end), bounds[key])
            for key, end in sorted(ends.items())
            if end != begins[key]
        ]

    def _ranges_again(
        self, begins: Positions, ends: Positions, stored: Positions
    ) -> list[QueueRange]:
        """Return the ranges of a batch that an earlier run of the query planned.

        Raises:
            DataLossError: messages of the batch are not there any more, and that is an error.
        """
        rest = {key: end for key, end in ends.items() if begins.get(key) != end}
        gone: set[QueueKey] = set()
        away: Away = {}
        session = self._planning
        bounds: Limits = session.bounds(rest, gone=gone, away=away)
        for key in sorted(gone):
            self._losses.report(
                f"{key}: no longer readable, a batch should end at offset {rest[key]}"
            )
        oldest = {key for key in rest if key not in begins or rest[key] < begins[key]}
        if oldest & away.keys():
            bounds = {**bounds, **self._session.bounds(oldest & away.keys())}
        bounds = of_masters(self._session, bounds, oldest)
        changes = self._identity(session).changes(rest, stored, bounds, away)
        ranges = [
            self._remaining(
                QueueRange(key, begins.get(key, limits.min), rest[key]), limits, changes.get(key)
            )
            for key, limits in bounds.items()
        ]
        waiting = away.keys() - bounds.keys()
        ranges += [QueueRange(key, begins[key], rest[key]) for key in waiting]
        return sorted(ranges)

    def _remaining(self, each: QueueRange, limits: Bounds, change: Change | None) -> QueueRange:
        if change is None:
            return self._losses.within(each, limits)
        return self._losses.remaining(each, change, limits)


def _known(document: dict[str, Any]) -> Positions:
    return from_json(without_start(document), "an offset of this stream")


def _by_broker(keys: Iterable[QueueKey]) -> list[tuple[str, list[QueueKey]]]:
    found: dict[str, list[QueueKey]] = {}
    for key in sorted(keys):
        found.setdefault(key.broker, []).append(key)
    return list(found.items())


def _maxima(bounds: Limits) -> Positions:
    return {key: limits.max for key, limits in bounds.items()}
