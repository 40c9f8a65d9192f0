# cython: annotation_typing=False
"""Held pulls: requests that wait at the end of a queue for a message that matches.

A held pull ends in one of these ways, and always exactly once:

- a message arrives that may match its filter: the pull is notified and runs again, after all
  arrivals of the same iteration of the event loop, so that a burst gets one response;
- its time is over: it runs again and responds, perhaps with "not found";
- its topic is deleted, its queue moves, or the broker stops: it runs again at once;
- its connection closes: it is removed.

Many pulls end in steps, for a few milliseconds in each iteration of the event loop.

Used in the event loop's thread only. Unlike RocketMQ (PullRequestHoldService), no sweep notifies
pulls of messages that do not match, and a pull ends when its time is over instead of up to 5 s
later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from math import ceil
from time import monotonic
from typing import Any

from cometmq.remoting.slices import SLICE_S
from cometmq.store import Matcher

log = logging.getLogger(__name__)

HELD_PULLS_MAX = 100_000
HOLD_MS_MAX = 300_000
TICK_MS = 10
"""Pulls end at whole ticks, so that one timer ends many, in the order of their arrival."""
ARRIVALS_MAX = 1000
"""The limit of unchecked messages of a queue with many pulls; beyond it all pulls are notified."""
_STEP_PULLS = 64
"""Pulls that are notified or removed at once; more are handled in steps, with pauses."""
_ANY = b"*"
"""Properties of a message that match every filter."""
_TICK_MS = TICK_MS


class HeldPull:
    """One held pull; a subclass defines how it runs again.

    Args:
        topic, queue_id: its queue.
        offset: the first offset to read.
        matcher: its filter; None for all messages.
        owner: its connection; if that closes, the pull ends.
        is_short_poll: whether it waits for its time only (short polling), not for messages.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        matcher: Matcher | None,
        owner: object,
        *,
        is_short_poll: bool = False,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.matcher = matcher
        self.owner = owner
        self.is_short_poll = is_short_poll
        self.until_s = 0.0
        """When its time is over, by the loop's clock."""
        self.deadline = 0
        """The tick in which its time is over."""
        self.is_held = False
        self.seen_to = 0
        """The queue offset up to which messages were checked since it is held."""

    def rerun(self) -> None:
        """Run the pull again and respond; called at most once."""
        raise NotImplementedError

    def fail(self, problem: Exception) -> None:
        """Respond with the error that `rerun` raised."""
        raise NotImplementedError


class HeldPulls:
    """All held pulls of a broker.

    Args:
        held_max: how many pulls may wait at once; more are refused.
    """

    def __init__(self, *, held_max: int = HELD_PULLS_MAX) -> None:
        self._held_max = held_max
        self._by_queue: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._by_owner: dict[object, dict[HeldPull, None]] = {}
        self.awaited: dict[str, int] = {}
        """How many pulls are held for each topic; a topic with none is not in it."""
        self._by_deadline: dict[int, dict[HeldPull, None]] = {}
        """Pulls by the tick in which their time is over, in the order of their arrival."""
        self._deadlines: list[int] = []
        """The ticks of `_by_deadline`, as a heap."""
        self._deferred: dict[tuple[str, int], list[tuple[int, int, bytes]]] = {}
        """Messages of a queue that its pulls are not checked for yet: offset, tags code,
        properties."""
        self._evaluating: dict[tuple[str, int], int] = {}
        """How many pulls of a queue evaluate properties; queues with none are not in it."""
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._held = 0
        self._notified: deque[HeldPull] = deque()
        self._steps: deque[Iterator[None]] = deque()
        self._is_working = False
        self._next_slice: Any = None
        """The scheduled call of `_work`, while that has something to do."""
        self._is_open = True
        self.on_hold: Callable[[HeldPull], object] | None = None
        """Called with each pull that is held."""

    def __len__(self) -> int:
        return self._held

    @property
    def is_open(self) -> bool:
        """Whether pulls are held; not any more when the broker stops."""
        return self._is_open

    def hold(self, pull: HeldPull, hold_ms: int) -> bool:
        """Hold a pull until something ends it, at the latest after ``hold_ms``, in whole ticks.

        Returns:
            False if too many pulls wait already or the broker is stopping; the caller responds.
        """
        if self._held >= self._held_max or not self._is_open:
            return False
        loop = asyncio.get_running_loop()
        waits_ms = min(max(hold_ms, 0), HOLD_MS_MAX)
        # The sum of two times may be a hair above a whole tick.
        pull.deadline = ceil((loop.time() * 1000.0 + waits_ms) / _TICK_MS - 0.001)
        pull.until_s = pull.deadline * _TICK_MS / 1000.0
        pull.seen_to = pull.offset
        pull.is_held = True
        due = self._by_deadline.get(pull.deadline)
        if due is None:
            due = self._by_deadline[pull.deadline] = {}
            heappush(self._deadlines, pull.deadline)
        due[pull] = None
        _insert(self._by_queue, (pull.topic, pull.queue_id), pull)
        _insert(self._by_owner, pull.owner, pull)
        if pull.matcher is not None and pull.matcher.needs_properties:
            queue = pull.topic, pull.queue_id
            self._evaluating[queue] = self._evaluating.get(queue, 0) + 1
        self._held += 1
        self.awaited[pull.topic] = self.awaited.get(pull.topic, 0) + 1
        if self._timer is None or pull.until_s < self._timer_s:
            self._set_timer(loop, pull.until_s)
        if self.on_hold is not None:
            self.on_hold(pull)
        return True

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._end_those_due)
        self._timer_s = at_s

    def _end_those_due(self) -> None:
        """End the pulls whose time is over; one timer serves all."""
        self._timer = None
        if not self._is_ending:
            self._is_ending = True
            self._schedule(self._end_in_steps())

    def _end_in_steps(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + TICK_MS / 2000
        try:
            while self._deadlines and self._deadlines[0] * TICK_MS / 1000 <= limit_s:
                deadline = self._deadlines[0]
                pulls = self._by_deadline[deadline]
                while pulls and self._deadlines[0] == deadline:  # an earlier one may be added
                    for pull in list(islice(pulls, _STEP_PULLS)):
                        self._notify(pull)
                    yield
                if self._deadlines[0] == deadline:
                    del self._by_deadline[heappop(self._deadlines)]
        finally:
            self._is_ending = False
        if self._deadlines:
            first_s = self._deadlines[0] * TICK_MS / 1000
            if self._timer is None or first_s < self._timer_s:
                self._set_timer(loop, first_s)

    def arrived(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        tags_code: int,
        store_time_ms: int = 0,
        properties: bytes = b"",
    ) -> None:
        """Notify the pulls that match a message that was appended."""
        queue = (topic, queue_id)
        waiting = self._by_queue.get(queue)
        if waiting is None:
            return
        if len(waiting) > _STEP_PULLS or (self._evaluating and queue in self._evaluating):
            self._defer_arrival(queue, (queue_offset, tags_code, properties))
            return
        for pull in list(waiting):
            if _matches(pull, queue_offset, tags_code, properties):
                self._notify(pull)

    def _defer_arrival(self, queue: tuple[str, int], message: tuple[int, int, bytes]) -> None:
        """Defer a message of a queue whose pulls are checked in steps.

        They are very many, or evaluate expressions.
        """
        messages = self._deferred.get(queue)
        if messages is None:
            self._deferred[queue] = [message]
            self._schedule(self._check_deferred(queue))
        elif len(messages) < ARRIVALS_MAX:
            messages.append(message)
        else:
            messages[-1] = (message[0], 0, _ANY)

    def _check_deferred(self, queue: tuple[str, int]) -> Iterator[None]:
        yield  # other messages of the same read are added
        messages = self._deferred.pop(queue)
        for pull in list(self._by_queue.get(queue, ())):
            evaluates = pull.matcher is not None and pull.matcher.needs_properties
            for queue_offset, tags_code, properties in messages:
                if not pull.is_held:
                    break
                if _matches(pull, queue_offset, tags_code, properties):
                    self._notify(pull)
                elif evaluates:
                    yield
            yield

    def check(self, topic: str, queue_id: int, finds: Callable[[HeldPull], bool | None]) -> None:
        """Notify the pulls of a queue that now find a matching message.

        Args:
            topic, queue_id: the queue.
            finds: returns whether a pull finds one; None to be called again, in a later step.
        """
        if (topic, queue_id) in self._by_queue:
            self._schedule(self._check_in_steps((topic, queue_id), finds))

    def _check_in_steps(
        self, queue: tuple[str, int], finds: Callable[[HeldPull], bool | None]
    ) -> Iterator[None]:
        for pull in list(self._by_queue.get(queue, ())):
            found: bool | None = None
            while pull.is_held and not pull.is_short_poll and found is None:
                try:
                    found = finds(pull)
                except Exception:
                    found = _cannot_decide(pull)
                if found:
                    self._notify(pull)
                yield

    def count(self, topic: str, queue_id: int) -> int:
        """Return how many pulls of a queue are held."""
        return len(self._by_queue.get((topic, queue_id), ()))

    def notify_first(self, topic: str, queue_id: int) -> bool:
        """Notify the pull of a queue that has waited longest; return whether there is one."""
        for pull in self._by_queue.get((topic, queue_id), ()):
            self._notify(pull)
            return True
        return False

    def rerun_topic(self, topic: str) -> None:
        """Run every held pull of a topic again: it was deleted, or its queues have moved."""
        if topic in self.awaited:
            self._schedule(self._notify_topic(topic))

    def _notify_topic(self, topic: str) -> Iterator[None]:
        for number, queue in enumerate(list(self._by_queue)):
            if queue[0] == topic:
                for pull in list(self._by_queue.get(queue, ())):
                    if pull.is_held:
                        self._notify(pull)
                        yield
            if number % _STEP_PULLS == 0:
                yield

    def rerun_of(self, owner: object, selects: Callable[[HeldPull], bool]) -> None:
        """Run those pulls of a connection again that a function selects."""
        pulls = self._by_owner.get(owner)
        if pulls is not None:
            self._schedule(self._notify_some(list(pulls), selects))

    def _notify_some(
        self, pulls: list[HeldPull], selects: Callable[[HeldPull], bool]
    ) -> Iterator[None]:
        for pull in pulls:
            if pull.is_held and selects(pull):
                self._notify(pull)
                yield

    def connection_closed(self, owner: object) -> None:
        """Remove the pulls of a closed connection."""
        pulls = self._by_owner.get(owner)
        if pulls is None:
            return
        if len(pulls) > _STEP_PULLS:
            self._schedule(self._remove_all(list(pulls)))
            return
        for pull in list(pulls):
            self._remove(pull)

    def _remove_all(self, pulls: list[HeldPull]) -> Iterator[None]:
        for pull in pulls:
            if pull.is_held:
                self._remove(pull)
            yield

    def close(self) -> None:
        """Run all held pulls again, and hold no more."""
        self._is_open = False
        for waiting in list(self._by_queue.values()):
            for pull in list(waiting):
                self._end(pull)
        self._steps.clear()
        while self._notified:
            self._rerun(self._notified.popleft())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _notify(self, pull: HeldPull) -> None:
        self._remove(pull)
        self._notified.append(pull)
        self._schedule(None)

    def _schedule(self, steps: Iterator[None] | None) -> None:
        """Run steps and notified pulls, from the next iteration of the event loop on."""
        if steps is not None:
            self._steps.append(steps)
        if not self._is_working:
            self._is_working = True
            self._next_slice = asyncio.get_running_loop().call_soon(self._work)

    def work_now(self) -> None:
        """Run notified pulls and steps in this iteration of the event loop, for one slice."""
        if self._is_working:
            self._next_slice.cancel()
            self._work()

    def _work(self) -> None:
        """Run notified pulls and steps for one slice; the rest follows in later iterations."""
        end_s = monotonic() + SLICE_S
        while self._notified or self._steps:
            if self._notified:
                self._rerun(self._notified.popleft())
            else:
                self._run_step()
            if monotonic() >= end_s:
                self._steps.rotate(-1)
                self._next_slice = asyncio.get_running_loop().call_soon(self._work)
                return
        self._is_working = False

    def _run_step(self) -> None:
        try:
            next(self._steps[0])
        except StopIteration:
            self._steps.popleft()
        except Exception:
            log.exception("cannot notify held pulls")
            self._steps.popleft()

    def _end(self, pull: HeldPull) -> None:
        self._remove(pull)
        self._rerun(pull)

    def _rerun(self, pull: HeldPull) -> None:
        # One pull that fails must not prevent the responses to the others.
        try:
            try:
                pull.rerun()
            except Exception as problem:
                pull.fail(problem)
        except Exception:
            queue = f"{pull.topic}/{pull.queue_id}"
            log.exception("held pull failed queue=%s offset=%d", queue, pull.offset)

    def _remove(self, pull: HeldPull) -> None:
        pull.is_held = False
        del self._by_deadline[pull.deadline][pull]
        _remove_from(self._by_queue, (pull.topic, pull.queue_id), pull)
        _remove_from(self._by_owner, pull.owner, pull)
        if self._evaluating and pull.matcher is not None and pull.matcher.needs_properties:
            queue = pull.topic, pull.queue_id
            self._evaluating[queue] -= 1
            if not self._evaluating[queue]:
                del self._evaluating[queue]
        self._held -= 1
        others = self.awaited[pull.topic] - 1
        if others:
            self.awaited[pull.topic] = others
        else:
            del self.awaited[pull.topic]


def _matches(pull: HeldPull, queue_offset: int, tags_code: int, properties: bytes) -> bool:
    """Return whether a message may match a pull."""
    if pull.is_short_poll or queue_offset < pull.offset:
        return False
    matcher = pull.matcher
    if matcher is None or properties is _ANY:
        return True
    try:
        if not matcher.matches_tags(tags_code):
            return False
        return not matcher.needs_properties or matcher.matches_properties(properties)
    except Exception:
        return _cannot_decide(pull)


def _cannot_decide(pull: HeldPull) -> bool:
    """Have a pull run again whose filter failed: its response says why, and the others go on."""
    log.exception("filter of a held pull failed queue=%s/%d", pull.topic, pull.queue_id)
    return True


def _insert(table: dict[Any, dict[HeldPull, None]], key: object, pull: HeldPull) -> None:
    pulls = table.get(key)
    if pulls is None:
        table[key] = {pull: None}
    else:
        pulls[pull] = None


def _remove_from(table: dict[Any, dict[HeldPull, None]], key: object, pull: HeldPull) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
