"""Compiled SQL92 expressions: each text is compiled once, for all subscriptions and pulls.

A text that does not compile is kept with its error, so that it is not compiled again with each
heartbeat and pull. Long texts take milliseconds to compile, and are compiled off the event loop.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.sql92 import Expression

EXPRESSION_CHARS_MAX: Final = 32 * 1024
"""The limit of characters of one expression."""
QUICK_CHARS_MAX: Final = 256
"""The characters that the event loop compiles at a time: about a millisecond."""
_TEXTS_MAX: Final = 1_000
_CHARS_MAX: Final = 1_000_000
"""Limits of the expressions that are kept, and of their characters together."""


class CompiledExpressions:
    """The expressions that were used last, compiled; for any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Expression | str] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def chars_to_compile(self, text: str) -> int:
        """Return how many characters `find` has to compile: none if the text is known."""
        return 0 if text in self._kept else len(text)

    def find(self, text: str) -> Expression | str:
        """Return an expression, or why the text is none."""
        with self._lock:
            known = self._kept.get(text)
            if known is not None:
                self._kept.move_to_end(text)
                return known
        made = _compiled(text)
        with self._lock:
            if text not in self._kept:
                self._kept[text] = made
                self._chars += len(text)
                while len(self._kept) > _TEXTS_MAX or self._chars > _CHARS_MAX:
                    dropped, _ = self._kept.popitem(last=False)
                    self._chars -= len(dropped)
            return made


def _compiled(text: str) -> Expression | str:
    from cometmq.sql92 import SqlError, compile_expression  # many brokers never need them

    try:
        return compile_expression(text)
    except SqlError as problem:
        return str(problem)


COMPILED = CompiledExpressions()
"""The expressions of all brokers in this process."""
