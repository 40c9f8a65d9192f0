"""Logs once when something starts to fail, and once when it works again."""

from __future__ import annotations

import logging

from cometmq.model.errors import CometError

FAILING_MAX = 10_000
"""Things in trouble that are remembered; of more than these every failure is a warning."""


class FailureLog:
    """Which things of one kind fail now.

    The first failure of a row is logged as a warning, those after it for debugging only, and the
    success that ends the row for information.

    Args:
        log: where to.
        fails: the sentence for a failure.
        works: the sentence for the end of a row.
        name: what the thing is called in the log, such as ``address``.
    """

    def __init__(self, log: logging.Logger, *, fails: str, works: str, name: str) -> None:
        self._log = log
        self._fails, self._works, self._name = fails, works, name
        self._failing: set[str] = set()

    def failed(self, thing: str, error: BaseException) -> None:
        """It failed, once or once more."""
        level = logging.DEBUG if thing in self._failing else logging.WARNING
        fields = (self._fails, self._name, thing, text_of(error))
        self._log.log(level, "%s %s=%s error=%s", *fields, exc_info=trace_of(error))
        if len(self._failing) < FAILING_MAX:
            self._failing.add(thing)

    def worked(self, thing: str) -> None:
        """It succeeded, as it mostly does."""
        if thing in self._failing:
            self._failing.discard(thing)
            self._log.info("%s %s=%s", self._works, self._name, thing)

    def forget(self, thing: str) -> None:
        """Nobody tries any more."""
        self._failing.discard(thing)


def trace_of(error: BaseException) -> BaseException | None:
    """Give an error whose traceback belongs into the log: one that no call of this client names."""
    return None if isinstance(error, CometError) else error


def text_of(error: BaseException) -> str:
    """Give what the log says of an error: its text, or its kind if it has none."""
    return str(error) or type(error).__name__
