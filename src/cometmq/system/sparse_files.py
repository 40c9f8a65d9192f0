"""Copies and digests of files that consist mostly of zeros, as preallocated files do.

    digest := SHA-256 of (position:u64 block)* size:u64, for each block that is not all zeros

Blocks begin at multiples of their size, so the digest of a file does not depend on its holes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from cometmq.system.platforms import SERVERS

BLOCK_BYTES = 64 * 1024
_ZEROS = bytes(BLOCK_BYTES)
_SYNC_BYTES = 8 * 1024 * 1024
"""A copy is synced whenever so much was written: other programs that sync then wait for little."""


def digest_of(path: Path) -> str:
    """Return the digest of a file.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        digest = _Digest(os.fstat(descriptor).st_size)
        for position, block in _blocks(descriptor, digest.size_bytes, None):
            digest.add(position, block)
        return digest.text()
    finally:
        os.close(descriptor)


def copy_sparse(
    source: Path,
    target: Path,
    *,
    end: int | None = None,
    on_block: Callable[[], object] | None = None,
) -> str:
    """Copy a file without its holes; return the digest of the copy, whose end is not synced.

    Args:
        source: what is copied; another process may write to it meanwhile.
        target: the new file. It gets the size, the mode and the times of the source.
        end: the position from which the copy is zero; None for nowhere.
        on_block: called before each block is read.

    Raises:
        OSError: the source cannot be read, or the target exists or cannot be written.
    """
    reading = os.open(source, os.O_RDONLY)
    try:
        facts = os.fstat(reading)
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, facts.st_mode & 0o777)
        try:
            os.ftruncate(writing, facts.st_size)
            digest = _Digest(facts.st_size)
            stop = facts.st_size if end is None else min(end, facts.st_size)
            unsynced = 0
            for position, block in _blocks(reading, stop, on_block):
                SERVERS.write_at(writing, block, position)
                digest.add(position, block)
                unsynced += len(block)
                if unsynced >= _SYNC_BYTES:
                    SERVERS.sync_data(writing)
                    unsynced = 0
            os.utime(writing, ns=(facts.st_atime_ns, facts.st_mtime_ns))
            return digest.text()
        finally:
            os.close(writing)
    finally:
        os.close(reading)


class _Digest:
    """The digest of a file of a size."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._hash = hashlib.sha256()

    def add(self, position: int, block: bytes) -> None:
        """Add the block at a position; what it lacks to a whole one is zero."""
        self._hash.update(position.to_bytes(8, "big"))
        self._hash.update(block.ljust(min(BLOCK_BYTES, self.size_bytes - position), b"\0"))

    def text(self) -> str:
        """Return the digest in hexadecimal digits."""
        self._hash.update(self.size_bytes.to_bytes(8, "big"))
        return self._hash.hexdigest()


def _blocks(
    descriptor: int, stop: int, on_block: Callable[[], object] | None
) -> Iterator[tuple[int, bytes]]:
    """Yield position and content of each block before ``stop`` that is not all zeros."""
    position = 0
    while position < stop:
        found = SERVERS.next_data(descriptor, position)
        if found is None:
            return
        first, hole = found
        position = first - first % BLOCK_BYTES
        while position < min(hole, stop):
            if on_block is not None:
                on_block()
            block = os.pread(descriptor, min(BLOCK_BYTES, stop - position), position)
            if block != _ZEROS[: len(block)]:
                yield position, block
            position += BLOCK_BYTES
