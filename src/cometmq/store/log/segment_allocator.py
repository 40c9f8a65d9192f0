"""Allocates the files of the commit log ahead of need, in a thread.

One file is allocated at a time. No append waits for it: an append that finds no file is refused,
and `wait` returns when it can be repeated. Programs without an event loop switch the thread off;
then a file is created when it is needed.

Source: AllocateMappedFileService, RocketMQ 5.3, for which appends wait.
"""

from __future__ import annotations

import logging
import threading

from cometmq.store.errors import SegmentNotReadyError
from cometmq.store.log.segments import Segment, Segments

logger = logging.getLogger(__name__)


class SegmentAllocator:
    """Allocates the next segment of a stream.

    Args:
        segments: the stream.
        ahead: whether to allocate it ahead of need, in a thread.
        wait_ms: how long `wait` waits.
    """

    def __init__(self, segments: Segments, *, ahead: bool, wait_ms: int) -> None:
        self._segments = segments
        self._ahead = ahead
        self._wait_s = wait_ms / 1000
        self._changed = threading.Condition()
        self._requested_base: int | None = None
        self._failed_base: int | None = None
        self._making_base: int | None = None
        self._made: Segment | None = None
        self._failure: OSError | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def request(self, base_offset: int) -> None:
        """Request the segment that begins at ``base_offset``, ahead of need.

        Only from the thread of the store: a segment in use must never be created again.
        """
        last = self._segments.last()
        if not self._ahead or (last is not None and base_offset < last.end_offset):
            return
        with self._changed:
            if self._made is None and self._making_base is None:
                self._requested_base = base_offset
                self._failure = None
                self._notify_thread()

    def take(self, base_offset: int) -> Segment:
        """Return the segment that begins at ``base_offset``.

        Raises:
            SegmentNotReadyError: it is being allocated; see `wait`.
            OSError: the disk is full or broken, and there is no thread.
        """
        if not self._ahead:
            return self._segments.make(base_offset, reserve=True)
        with self._changed:
            made = self._made
            if made is not None and made.base_offset == base_offset:
                self._made = None
                return made
        if made is not None:
            self._segments.discard(made)
            self._made = None
        self.request(base_offset)
        raise SegmentNotReadyError(f"commit-log file {base_offset} is being allocated")

    def wait(self) -> None:
        """Return when no segment is being allocated; from any thread but the one of the store.

        Raises:
            SegmentNotReadyError: it is not allocated within the time of the settings.
            OSError: it could not be allocated: the disk is full or broken.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_idle, self._wait_s):
                raise SegmentNotReadyError(
                    f"commit-log file {self._making_base} is not allocated after {self._wait_s} s"
                )
            if self._failure is not None and self._made is None:
                raise self._failure

    def discard_ahead(self) -> None:
        """Delete a segment that was allocated ahead of need; from the thread of the store.

        Raises:
            SegmentNotReadyError: one is being allocated; see `wait`.
        """
        with self._changed:
            if not self._is_idle():
                raise SegmentNotReadyError("a commit-log file is being allocated")
            made, self._made = self._made, None
        if made is not None:
            self._segments.discard(made)

    def stop(self, *, keep: bool = False) -> None:
        """End the thread; delete an unused segment, unless ``keep`` is set."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        made, self._made = self._made, None
        if made is not None and keep:
            made.close()
        elif made is not None:
            self._segments.discard(made)

    def _is_idle(self) -> bool:
        return self._stopped or (self._making_base is None and self._requested_base is None)

    def _notify_thread(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="segment-allocator", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._requested_base is not None)
                if self._stopped:
                    return
                base, self._requested_base = self._requested_base, None
                self._making_base = base
            if base is not None:
                self._make(base)

    def _make(self, base: int) -> None:
        made: Segment | None = None
        failure: OSError | None = None
        try:
            made = self._segments.make(base, reserve=True)
        except OSError as problem:
            size_bytes = self._segments.size_bytes
            reason = (
                f"{problem.strerror}, for a file of {size_bytes} bytes (mappedFileSizeCommitLog)"
            )
            failure = OSError(problem.errno, reason, problem.filename)
            if base != self._failed_base:  # each append repeats it
                logger.warning("cannot allocate a commit-log file base=%d error=%s", base, failure)
            self._failed_base = base
        finally:
            with self._changed:
                self._made, self._failure = made, failure
                self._making_base = None
                self._changed.notify_all()
