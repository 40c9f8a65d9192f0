# cython: annotation_typing=False
"""Held pulls: requests that wait at the end of a queue for a message they want.

A held pull ends in one of these ways, and always exactly once:

- a message arrives which its filter may match: the pull runs again, after the arrivals of the same
  turn of the event loop, so that a burst is answered with one answer;
- its time is over: it runs again and is answered with what there is, if only "not found";
- its topic goes, or the broker stops: it runs again at once;
- its connection closes: it is forgotten.

Owned by the event loop's thread. Unlike RocketMQ (PullRequestHoldService), no sweep wakes pulls
for messages they do not want, and a pull ends when its time is over instead of up to 5 s later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from cometmq.store import Matcher

log = logging.getLogger(__name__)

HELD_PULLS_MAX = 100_000
HOLD_MS_MAX = 300_000


class HeldPull:
    """One pull that waits.

    Args:
        topic, queue_id: where it waits.
        offset: the first offset it wants.
        matcher: what it wants; None for everything.
        owner: what it leaves with, its connection.
        rerun: answers the pull for good; called at most once.
        sits_out: whether it waits for its time only (short polling), not for messages.
    """

    __slots__ = ("matcher", "offset", "owner", "place", "rerun", "sits_out", "timer")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        matcher: Matcher | None,
        owner: object,
        rerun: Callable[[], None],
        *,
        sits_out: bool = False,
    ) -> None:
        self.place = (topic, queue_id)
        self.offset = offset
        self.matcher = matcher
        self.owner = owner
        self.rerun = rerun
        self.sits_out = sits_out
        self.timer: asyncio.TimerHandle | None = None


class HeldPulls:
    """All held pulls of a broker.

    Args:
        held_max: how many pulls may wait at once; more are refused.
    """

    def __init__(self, *, held_max: int = HELD_PULLS_MAX) -> None:
        self._held_max = held_max
        self._by_place: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._by_owner: dict[object, dict[HeldPull, None]] = {}
        self.awaited: dict[str, int] = {}
        """How many pulls are held for each topic; those with none are not in it."""
        self._held = 0
        self._woken: list[HeldPull] = []
        self._is_open = True

    def __len__(self) -> int:
        return self._held

    def hold(self, pull: HeldPull, hold_ms: int) -> bool:
        """Keep a pull until something ends it, at the latest after ``hold_ms``.

        Returns:
            False when too many pulls wait already or the broker is stopping; the caller answers.
        """
        if self._held >= self._held_max or not self._is_open:
            return False
        seconds = min(max(hold_ms, 0), HOLD_MS_MAX) / 1000
        pull.timer = asyncio.get_running_loop().call_later(seconds, self._end, pull)
        self._by_place.setdefault(pull.place, {})[pull] = None
        self._by_owner.setdefault(pull.owner, {})[pull] = None
        self._held += 1
        topic = pull.place[0]
        self.awaited[topic] = self.awaited.get(topic, 0) + 1
        return True

    def arrived(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        tags_code: int,
        store_time_ms: int = 0,
        properties: bytes = b"",
    ) -> None:
        """Wake the pulls that want the message which came to this place."""
        waiting = self._by_place.get((topic, queue_id))
        if waiting is None:
            return
        for pull in list(waiting):
            if pull.sits_out or queue_offset < pull.offset:
                continue
            if _wants(pull.matcher, tags_code, properties):
                self._wake(pull)

    def topic_gone(self, topic: str) -> None:
        """Run every pull on this topic again, now."""
        for place in [place for place in self._by_place if place[0] == topic]:
            for pull in list(self._by_place[place]):
                self._wake(pull)

    def connection_closed(self, owner: object) -> None:
        """Forget the pulls of a connection that is gone."""
        for pull in list(self._by_owner.get(owner, ())):
            self._remove(pull)

    def close(self) -> None:
        """Answer what waits, and hold nothing from now on."""
        self._is_open = False
        for waiting in list(self._by_place.values()):
            for pull in list(waiting):
                self._end(pull)
        self._run_woken()

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
        # An edge: one pull that fails must not keep the others of this turn from their answers.
        try:
            pull.rerun()
        except Exception:
            log.exception("A held pull failed. place=%s offset=%d", pull.place, pull.offset)

    def _remove(self, pull: HeldPull) -> None:
        if pull.timer is not None:
            pull.timer.cancel()
            pull.timer = None
        _take_out(self._by_place, pull.place, pull)
        _take_out(self._by_owner, pull.owner, pull)
        self._held -= 1
        topic = pull.place[0]
        self.awaited[topic] -= 1
        if not self.awaited[topic]:
            del self.awaited[topic]


def _wants(matcher: Matcher | None, tags_code: int, properties: bytes) -> bool:
    if matcher is None:
        return True
    if not matcher.matches_tags(tags_code):
        return False
    return not matcher.needs_properties or matcher.matches_properties(properties)


def _take_out(table: dict[Any, dict[HeldPull, None]], key: object, pull: HeldPull) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
