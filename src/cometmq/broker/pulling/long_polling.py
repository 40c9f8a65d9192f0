# cython: annotation_typing=False
"""Held pulls: requests that wait at the end of a queue for a message that matches.

A held pull ends in one of these ways, and always exactly once:

- a message arrives which its filter may match: the pull runs again, after the arrivals of the same
  turn of the event loop, so that a burst gets one response;
- its time is over: it runs again and responds, perhaps with "not found";
- its topic goes, or the broker stops: it runs again at once;
- its connection closes: it is removed.

Owned by the event loop's thread. Unlike RocketMQ (PullRequestHoldService), no sweep notifies pulls
of messages that do not match, and a pull ends when its time is over instead of up to 5 s later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from cometmq.store import Matcher

log = logging.getLogger(__name__)

HELD_PULLS_MAX = 100_000
HOLD_MS_MAX = 300_000
TICK_MS = 10
"""Pulls are held for whole ticks, so that those held equally long end in the order they came."""
_TICK_MS = TICK_MS


class HeldPull:
    """One pull that waits; a subclass says what it does when it runs again.

    Args:
        topic, queue_id: where it waits.
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
        self.ticks = 0
        """For how long it is held."""
        self.seen_to = 0
        """The queue offset up to which messages were checked since it is held."""

    def rerun(self) -> None:
        """Answer the pull for good; called at most once."""
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
        """How many pulls are held for each topic; those with none are not in it."""
        self._by_ticks: dict[int, dict[HeldPull, None]] = {}
        """Those that are held equally long, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._held = 0
        self._woken: list[HeldPull] = []
        self._is_open = True
        self.on_hold: Callable[[HeldPull], object] | None = None
        """Called with each pull that is held."""

    def __len__(self) -> int:
        return self._held

    def hold(self, pull: HeldPull, hold_ms: int) -> bool:
        """Keep a pull until something ends it, at the latest after ``hold_ms``, in whole ticks.

        Returns:
            False if too many pulls wait already or the broker is stopping; the caller responds.
        """
        if self._held >= self._held_max or not self._is_open:
            return False
        loop = asyncio.get_running_loop()
        waits_ms = min(max(hold_ms, 0), HOLD_MS_MAX)
        pull.ticks = (waits_ms + _TICK_MS - 1) // _TICK_MS
        pull.until_s = loop.time() + pull.ticks * _TICK_MS / 1000.0
        pull.seen_to = pull.offset
        _put_in(self._by_ticks, pull.ticks, pull)
        _put_in(self._by_queue, (pull.topic, pull.queue_id), pull)
        _put_in(self._by_owner, pull.owner, pull)
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
        """End the pulls whose time is over; one timer serves all, and may find nothing to do."""
        self._timer = None
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + TICK_MS / 2000
        for ticks in list(self._by_ticks):
            held = self._by_ticks.get(ticks, {})
            due = takewhile(lambda pull: pull.until_s <= limit_s, held)
            for pull in list(due):
                self._end(pull)
        first_s = min((next(iter(pulls)).until_s for pulls in self._by_ticks.values()), default=0.0)
        if first_s and (self._timer is None or first_s < self._timer_s):
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
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return
        for pull in list(waiting):
            if pull.is_short_poll or queue_offset < pull.offset:
                continue
            if _wants(pull.matcher, tags_code, properties):
                self._wake(pull)

    def check(self, topic: str, queue_id: int, finds: Callable[[HeldPull], bool]) -> None:
        """Notify the pulls of a queue that now find a message."""
        for pull in list(self._by_queue.get((topic, queue_id), ())):
            if not pull.is_short_poll and finds(pull):
                self._wake(pull)

    def topic_gone(self, topic: str) -> None:
        """Run every pull on this topic again, now."""
        for queue in [queue for queue in self._by_queue if queue[0] == topic]:
            for pull in list(self._by_queue[queue]):
                self._wake(pull)

    def connection_closed(self, owner: object) -> None:
        """Forget the pulls of a connection that is gone."""
        for pull in list(self._by_owner.get(owner, ())):
            self._remove(pull)

    def close(self) -> None:
        """Answer what waits, and hold nothing from now on."""
        self._is_open = False
        for waiting in list(self._by_queue.values()):
            for pull in list(waiting):
                self._end(pull)
        self._run_woken()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self, pull: HeldPull) -> None:
        self._remove(pull)
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._woken.append(pull)

    def _run_woken(self) -> None:
        woken, self._woken = self._woken, []
        for pull in woken:
            self._rerun(pull)

    def _end(self, pull: HeldPull) -> None:
        self._remove(pull)
        self._rerun(pull)

    def _rerun(self, pull: HeldPull) -> None:
        # One pull that fails must not prevent the responses to the others of this turn.
        try:
            pull.rerun()
        except Exception:
            place = f"{pull.topic}/{pull.queue_id}"
            log.exception("held pull failed queue=%s offset=%d", place, pull.offset)

    def _remove(self, pull: HeldPull) -> None:
        _take_out(self._by_ticks, pull.ticks, pull)
        _take_out(self._by_queue, (pull.topic, pull.queue_id), pull)
        _take_out(self._by_owner, pull.owner, pull)
        self._held -= 1
        others = self.awaited[pull.topic] - 1
        if others:
            self.awaited[pull.topic] = others
        else:
            del self.awaited[pull.topic]


def _wants(matcher: Matcher | None, tags_code: int, properties: bytes) -> bool:
    if matcher is None:
        return True
    if not matcher.matches_tags(tags_code):
        return False
    return not matcher.needs_properties or matcher.matches_properties(properties)


def _put_in(table: dict[Any, dict[HeldPull, None]], key: object, pull: HeldPull) -> None:
    pulls = table.get(key)
    if pulls is None:
        table[key] = {pull: None}
    else:
        pulls[pull] = None


def _take_out(table: dict[Any, dict[HeldPull, None]], key: object, pull: HeldPull) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
