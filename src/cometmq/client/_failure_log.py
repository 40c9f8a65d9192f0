"""Logs once when something starts to fail, once when it works again, and reports what stays broken.

A failure is permanent if retrying cannot cure it. That is so after `PERMANENT_FAILURES` failures of
one thing in a row, over at least `PERMANENT_S` seconds, none of which can come from a server that
is away or refuses: a hook, decoder, strategy or store that raises each time, or a defect of this
client. An unreachable broker is never a permanent failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from cometmq.model.errors import CometError, InvalidMessageError, ProtocolError, StoreError

FAILING_MAX = 10_000
"""Failing things that are remembered. For each further one, every failure is a warning."""
PERMANENT_FAILURES = 5
"""Failures in a row that retrying cannot cure, after which the failure is permanent."""
PERMANENT_S = 120.0
"""Seconds from the first to the last of them, at least."""


@dataclass(slots=True)
class _Row:
    """Failures of one thing, without a success in between."""

    count: int = 0
    incurable: int = 0
    """How many of the last ones in a row retrying cannot cure."""
    since_s: float = 0.0
    """When the first of these was."""


class FailureLog:
    """Which things of one kind fail now.

    The first failure of a row is logged as a warning, those after it for debugging only, and the
    success that ends the row for information.

    Args:
        log: where to.
        fails: the sentence for a failure.
        works: the sentence for the end of a row.
        name: what the thing is called in the log, such as ``address``.
        more: further fields of each line, such as ``group=g``.
        on_permanent: called with the error of a permanent failure. Needs a running event loop.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        fails: str,
        works: str,
        name: str,
        more: str = "",
        on_permanent: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._log = log
        self._fails, self._works, self._name = fails, works, name
        self._more = f" {more}" if more else ""
        self._on_permanent = on_permanent
        self._rows: dict[str, _Row] = {}

    def failed(
        self, thing: str, error: BaseException, *, curable: bool | None = None, quiet: bool = False
    ) -> int:
        """Note a failure.

        Args:
            thing: what failed.
            error: why.
            curable: whether retrying may help; by default the kind of the error decides.
            quiet: log it for debugging only.

        Returns:
            How often it has failed since it worked last.
        """
        row = self._rows.get(thing) or _Row()
        level = logging.DEBUG if quiet or row.count else logging.WARNING
        fields = (self._fails, self._name, thing, self._more, text_of(error))
        self._log.log(level, "%s %s=%s%s error=%s", *fields, exc_info=trace_of(error))
        if thing in self._rows or len(self._rows) < FAILING_MAX:
            self._rows[thing] = row
        row.count += 1
        if self._on_permanent is not None:
            self._check_permanent(row, error, is_curable(error) if curable is None else curable)
        return row.count

    def _check_permanent(self, row: _Row, error: BaseException, curable: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        if curable:
            row.incurable = 0
            return
        if not row.incurable:
            row.since_s = now_s
        row.incurable += 1
        if row.incurable >= PERMANENT_FAILURES and now_s - row.since_s >= PERMANENT_S:
            assert self._on_permanent is not None
            self._on_permanent(error)

    def worked(self, thing: str) -> None:
        """Note a success."""
        row = self._rows.pop(thing, None) if self._rows else None
        if row is not None:
            self._log.info("%s %s=%s%s", self._works, self._name, thing, self._more)

    def forget(self, thing: str) -> None:
        """Note that it is not tried any more."""
        self._rows.pop(thing, None)


def is_curable(error: BaseException) -> bool:
    """Return whether retrying may help: a server is away, refuses, or has changed meanwhile."""
    if isinstance(error, OSError):
        return True
    lasting = (ProtocolError, InvalidMessageError, StoreError)
    return isinstance(error, CometError) and not isinstance(error, lasting)


def trace_of(error: BaseException) -> BaseException | None:
    """Give an error whose traceback belongs into the log: one that no call of this client names."""
    return None if isinstance(error, CometError) else error


def text_of(error: BaseException) -> str:
    """Give what the log says of an error: its text, or its kind if it has none."""
    return str(error) or type(error).__name__
