"""Calls functions on SIGTERM and SIGINT while consumers run."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _SignalHandlers:
    """The signal handlers of one event loop, which all its consumers share."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self._loop = loop
        self._before: dict[signal.Signals, Any] = {}
        for number in SIGNALS:
            before = signal.getsignal(number)
            try:
                loop.add_signal_handler(number, self._call_all)
            except NotImplementedError:  # Windows
                return
            self._before[number] = before

    def restore(self) -> None:
        """Set the handlers that were there before."""
        for number, handler in self._before.items():
            self._loop.remove_signal_handler(number)
            if handler is not None:  # None: it was not set from Python
                signal.signal(number, handler)

    def _call_all(self) -> None:
        for callback in list(self.callbacks):
            callback()


_handlers: dict[asyncio.AbstractEventLoop, _SignalHandlers] = {}


@contextmanager
def stop_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` on each SIGTERM and SIGINT within a ``with`` block.

    The first block of an event loop sets signal handlers, the last one restores those before.
    Outside the main thread, and in event loops without signal support, nothing is called.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = _handlers.get(loop)
    if handlers is None:
        handlers = _handlers[loop] = _SignalHandlers(loop)
    handlers.callbacks.append(callback)
    try:
        yield
    finally:
        handlers.callbacks.remove(callback)
        if not handlers.callbacks:
            del _handlers[loop]
            handlers.restore()
