"""Logs requests that took long, with where their time was spent.

    slow request code=SEND_MESSAGE opaque=7 peer=10.0.0.9:51000 topic=orders group=- ms=2310
    spent=append:4,flush:2306

``spent`` has milliseconds: ``loop`` (the event loop was busy, with this request or with others),
``thread`` (a thread created a file or wrote a table), ``disk`` (a thread read messages), ``append``
(the record was written to the log), ``flush`` (it was synced), ``slaves`` (slaves received it),
``socket`` (the peer did not read its responses). A pull that waits for messages is not slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TypeVar

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_TOPIC_FIELDS = ("topic", "b")
"""The names of a topic in headers; a send of version 2 has letters."""
_GROUP_FIELDS = ("consumerGroup", "group", "producerGroup", "a")
_CHARS_MAX = 255

_spent: ContextVar[dict[str, float] | None] = ContextVar("spent", default=None)
"""Seconds by where they were spent, of the request that this task handles."""


@contextmanager
def spent_on(what: str) -> Iterator[None]:
    """Count the time of the block for the request that this task handles, if there is one."""
    table = _spent.get()
    if table is None:
        yield
        return
    began_s = monotonic()
    try:
        yield
    finally:
        table[what] = table.get(what, 0.0) + monotonic() - began_s


async def in_thread(call: Callable[[], _T]) -> _T:
    """Return what a blocking function returns; it runs in a thread, and its time counts as such."""
    with spent_on("thread"):
        return await asyncio.get_running_loop().run_in_executor(None, call)


def begin_request() -> dict[str, float]:
    """Count from now on what this task spends; return the table."""
    table: dict[str, float] = {}
    _spent.set(table)
    return table


class SlowRequests:
    """The log of one server: some lines in ten seconds, then the number of further ones.

    Args:
        limit_ms: what takes longer is logged.
        server: the name of the server.
    """

    def __init__(self, limit_ms: int, server: str) -> None:
        self.limit_ms = limit_ms
        self.limit_s = limit_ms / 1000
        self._lines = RateLimitedLog(log, f"slow requests server={server}")

    def settle(self, *, now: bool = False) -> None:
        """Log how many requests were only counted, if the time of their window is over."""
        self._lines.settle(now=now)

    def handled(
        self, command: Command, peer: str, took_s: float, spent: Mapping[str, float]
    ) -> None:
        """Log a request that was handled, if it took long; the rest of its time is the loop's."""
        if took_s < self.limit_s:
            return
        fields = command.fields if command.has_fields else {}
        self.add(
            command.code,
            command.opaque,
            peer,
            took_s,
            {**spent, "loop": max(0.0, took_s - sum(spent.values()))},
            topic=_first(fields, _TOPIC_FIELDS),
            group=_first(fields, _GROUP_FIELDS),
        )

    def add(
        self,
        code: int,
        opaque: int,
        peer: str,
        took_s: float,
        spent: Mapping[str, float],
        *,
        topic: str = "",
        group: str = "",
    ) -> None:
        """Log a request that took long.

        Args:
            code: the request code.
            opaque: the number of the request.
            peer: who sent it.
            took_s: seconds until its response was written.
            spent: seconds by where they were spent.
            topic, group: of the request; empty if it has none.
        """
        known = code in RequestCode._value2member_map_
        self._lines.add(
            "slow request code=%s opaque=%d peer=%s topic=%s group=%s ms=%d spent=%s",
            RequestCode(code).name if known else code,
            opaque,
            peer,
            topic[:_CHARS_MAX] or "-",
            group[:_CHARS_MAX] or "-",
            took_s * 1000,
            ",".join(f"{what}:{s * 1000:.0f}" for what, s in spent.items()),
        )

    def not_read(self, peer: str, took_s: float) -> None:
        """Log that a peer did not read its responses for long."""
        if took_s >= self.limit_s:
            spent = f"socket:{took_s * 1000:.0f}"
            self._lines.add("slow responses peer=%s ms=%d spent=%s", peer, took_s * 1000, spent)


def _first(fields: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((fields[name] for name in names if fields.get(name)), "")
