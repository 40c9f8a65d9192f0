"""Logs of failures that stay short, however often something fails.

`FailureLog` is for what is tried again and again: one line when it begins to fail, one for each
further reason, and one when it works again. `RateLimitedLog` is for failures of single things
that are not tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from time import monotonic

from cometmq.model.errors import CometError

FAILING_MAX = 10_000
"""Failing subjects that are remembered. For each further one, every failure is a warning."""
REASONS_MAX = 5
"""Reasons of one streak that are warnings. The others may differ in a number only."""
LINES_MAX = 20
WINDOW_S = 10.0


class FailureLog:
    """Logs once when a subject, such as an address, starts to fail, and once when it recovers.

    The first failure of a streak is a warning, and so is the first one for another reason, up to
    `REASONS_MAX`. Further ones are debug lines, and the success that ends the streak is an info
    line.

    Args:
        log: the logger.
        fails: the sentence for a failure.
        works: the sentence for the success that ends a streak.
        name: the field of the subject in the log, such as ``address``.
        more: further fields of each line, such as ``group=g``.
        alike_max: how many failing subjects log one reason. A lost broker may fail hundreds of
            queues; then one line says that the others are debug lines.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        fails: str,
        works: str,
        name: str,
        more: str = "",
        alike_max: int = FAILING_MAX,
    ) -> None:
        self._log = log
        self._alike_max = alike_max
        # The name is part of the format, so that it names a field of a JSON line.
        fails, works = (f"{text.replace('%', '%%')} {name}=%s%s" for text in (fails, works))
        self._fails, self._works = f"{fails} error=%s", works
        self._more = f" {more}" if more else ""
        self._streaks: dict[str, _Streak] = {}
        """The failures of each failing subject since its last success."""

    def failed(self, subject: str, error: BaseException, *, quiet: bool = False) -> int:
        """Record a failure.

        Args:
            subject: what failed.
            error: why.
            quiet: log it as a debug line.

        Returns:
            How often it has failed since its last success.
        """
        streak = self._streaks.get(subject)
        if streak is None:
            streak = _Streak()
            if len(self._streaks) < FAILING_MAX:
                self._streaks[subject] = streak
        streak.count += 1
        text = streak.reason = log_text(error)
        is_new = not quiet and streak.is_new(text) and self._is_rare(streak)
        self._log.log(
            logging.WARNING if is_new else logging.DEBUG,
            self._fails,
            subject,
            self._more,
            text,
            exc_info=log_trace(error),
        )
        return streak.count

    def _is_rare(self, streak: _Streak) -> bool:
        """Return whether few other subjects fail for the reason of this one."""
        if len(self._streaks) <= self._alike_max:
            return True
        alike = (each for each in self._streaks.values() if each.has(streak.reason))
        count = sum(1 for _ in islice(alike, self._alike_max + 2))
        if count == self._alike_max + 1:
            text = "further failures with this error are logged at level DEBUG%s error=%s"
            self._log.warning(text, self._more, streak.reason)
        return count <= self._alike_max

    @property
    def is_failing(self) -> bool:
        """Whether any subject fails now."""
        return bool(self._streaks)

    def reasons(self) -> list[str]:
        """Return the newest reason of each failing subject, as ``subject: reason``."""
        return [f"{subject}: {streak.reason}" for subject, streak in self._streaks.items()]

    def is_known(self, subject: str) -> bool:
        """Return whether a subject fails now, and is remembered."""
        return subject in self._streaks

    def succeeded(self, subject: str) -> None:
        """Record a success."""
        if self._streaks and self._streaks.pop(subject, None) is not None:
            self._log.info(self._works, subject, self._more)

    def forget(self, subject: str) -> None:
        """Forget the failures of a subject that is not tried any more."""
        self._streaks.pop(subject, None)


class _Streak:
    """The failures of a subject since its last success."""

    __slots__ = ("_reasons", "count", "reason")

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""
        """The newest one."""
        self._reasons: list[int] = []
        """Hashes of the reasons that were warnings."""

    def has(self, reason: str) -> bool:
        """Return whether `is_new` has noted a reason."""
        return hash(reason) in self._reasons

    def is_new(self, reason: str) -> bool:
        """Note a reason; return whether it is a further one, of those that are logged."""
        number = hash(reason)
        if number in self._reasons or len(self._reasons) >= REASONS_MAX:
            return False
        self._reasons.append(number)
        return True


class RateLimitedLog:
    """Logs up to `LINES_MAX` lines in `WINDOW_S`, and then how many more there were.

    Args:
        log: the logger.
        what: names the lines that are only counted.
        level: of all lines.
        lines_max: the limit, if it is another one.
        now_s: returns the time of a monotonic clock.
    """

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        *,
        level: int = logging.WARNING,
        lines_max: int = LINES_MAX,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        self._log = log
        self._what = what
        self._level = level
        self._lines_max = lines_max
        self._now_s = now_s
        self._began_s = -WINDOW_S
        self._lines = 0

    def add(self, text: str, *args: object) -> None:
        """Log a line, or count it."""
        if self._now_s() - self._began_s >= WINDOW_S:
            self.settle()
            self._began_s = self._now_s()
        self._lines += 1
        if self._lines <= self._lines_max:
            self._log.log(self._level, text, *args)

    def settle(self, *, now: bool = False) -> None:
        """Log how many lines were only counted, if the time of their window is over."""
        if now or self._now_s() - self._began_s >= WINDOW_S:
            more, self._lines = self._lines - self._lines_max, 0
            if more > 0:
                self._log.log(self._level, "%d more %s", more, self._what)


def log_trace(error: BaseException) -> BaseException | None:
    """Return the error if the log needs its traceback: our own errors need none."""
    return None if isinstance(error, CometError) else error


def log_text(error: BaseException) -> str:
    """Return the text of an error for a log line, or its class if it has no text."""
    return error_text(error) or type(error).__name__


def error_text(error: BaseException) -> str:
    """Return ``str(error)``; the error may be an application's, whose ``__str__`` raises."""
    try:
        return str(error)
    except Exception as failure:
        return f"(str() raised {type(failure).__name__})"
