"""Makes the next commit-log file ready before the log gets there, in a thread of its own.

One file may be waiting at a time; a newer wish replaces an older one.
Source: ours, in the place of AllocateMappedFileService, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import threading

from cometmq.store.segments import Segment, Segments
from cometmq.system.threads import yield_to_others

logger = logging.getLogger(__name__)


class Preparation:
    """Makes the next segment of a stream ahead of use.

    Args:
        segments: the stream.
        wait_ms: how long `take` waits for a segment in the making.
    """

    def __init__(self, segments: Segments, wait_ms: int) -> None:
        self._segments = segments
        self._wait_s = wait_ms / 1000
        self._changed = threading.Condition()
        self._wanted_base: int | None = None
        self._making_base: int | None = None
        self._made: Segment | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def want_segment(self, base_offset: int) -> None:
        """Ask for the segment that begins at ``base_offset``."""
        with self._changed:
            if self._made is None and self._making_base is None:
                self._wanted_base = base_offset
                self._wake()

    def take(self, base_offset: int) -> Segment:
        """Return the segment that begins at ``base_offset``, made ahead or now.

        Raises:
            OSError: the disk is full or broken.
            TimeoutError: it is still being made.
        """
        with self._changed:
            self._wanted_base = None
            if not self._changed.wait_for(lambda: self._making_base is None, self._wait_s):
                raise TimeoutError(
                    f"commit-log file {base_offset} is not ready after {self._wait_s} s"
                )
            made, self._made = self._made, None
        if made is not None and made.base_offset == base_offset:
            return made
        if made is not None:
            self._segments.discard(made)
        return self._segments.make(base_offset, reserve=True)

    def stop(self, *, keep: bool = False) -> None:
        """End the thread; delete a segment that was never used, unless told to ``keep`` it."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._made is not None and not keep:
            self._segments.discard(self._made)
        self._made = None

    def _wake(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="store-preparation", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        yield_to_others()
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._stopped:
                    return
                base, self._wanted_base = self._wanted_base, None
                self._making_base = base
            if base is not None:
                self._make(base)

    def _has_work(self) -> bool:
        return self._stopped or self._wanted_base is not None

    def _make(self, base: int) -> None:
        made: Segment | None = None
        try:
            made = self._segments.make(base, reserve=True)
        except OSError as problem:
            logger.warning(
                "cannot preallocate the next commit-log file base=%d error=%s", base, problem
            )
        finally:
            with self._changed:
                self._made = made
                self._making_base = None
                self._changed.notify_all()
