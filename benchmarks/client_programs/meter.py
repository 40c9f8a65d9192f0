"""Counts messages under load, and measures what they cost. Needs nothing but Python."""

from __future__ import annotations

import time

MORE_S_MAX = 60.0
"""How long the next message may take; the first one waits for the client to start."""


class Meter:
    """Counts the messages of a program; the figures are those after the warm-up.

    The program adds to ``count``, which costs next to nothing, while `run` sleeps in a thread.
    """

    def __init__(self, seconds: float, warm_s: float) -> None:
        self._seconds = seconds
        self._warm_s = warm_s
        self.count = 0
        self.errors = 0
        self.over = False
        """Whether the figures are there, so that the load can end."""

    def run(self) -> dict[str, float]:
        """Return the figures; blocks until the warm-up and the measured time are over.

        Raises:
            TimeoutError: messages stopped coming, so the figures would be those of waiting.
        """
        try:
            self._wait_for_more(0)
            time.sleep(self._warm_s)
            began, cpu, count = self._read()
            time.sleep(self._seconds)
            ended, cpu_ended, count_ended = self._read()
            self._wait_for_more(count_ended)
        finally:
            self.over = True
        return {
            "messages": count_ended - count,
            "seconds": ended - began,
            "cpu_seconds": cpu_ended - cpu,
            "errors": self.errors,
        }

    def _read(self) -> tuple[float, float, int]:
        return time.perf_counter(), time.process_time(), self.count

    def _wait_for_more(self, count: int) -> None:
        deadline = time.monotonic() + MORE_S_MAX
        while self.count <= count:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no message came within {MORE_S_MAX:g} s after {count} messages"
                )
            time.sleep(0.01)
