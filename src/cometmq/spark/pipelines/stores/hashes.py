"""Java's hash of many texts at once, for tags codes and the keys of the index.

    hash := hash of what stands before * 31 ** length + sum of unit[i] * 31 ** (length - 1 - i)

modulo 2 ** 32, over UTF-16 units. Texts of equal length are hashed together; what is not ASCII, one
by one. The hash is String.hashCode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cometmq.protocol.hashing import extend_hash

_LONG = 256


def java_hashes(texts: Any, seeds: Any = None) -> Any:
    """Return the hash of each text as a signed 32-bit number.

    Args:
        texts: a ``pyarrow`` array of strings without nulls.
        seeds: the hash of what stands before each text; 0 without it.
    """
    count = len(texts)
    hashes = np.zeros(count, dtype=np.uint32)
    if seeds is not None:
        hashes[:] = np.asarray(seeds).astype(np.uint32)
    if count == 0:
        return hashes.view(np.int32)
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)
    offsets = offsets[texts.offset : texts.offset + count + 1].astype(np.int64)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
    lengths = np.diff(offsets)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if length > _LONG:
            _one_by_one(hashes, rows, offsets, data)
        elif length:
            _together(hashes, rows, offsets, data, length)
    return hashes.view(np.int32)


def index_hashes(hashes: Any) -> Any:
    """Return what the index files keys under: the absolute values, 0 for the least number."""
    wide = np.abs(hashes.astype(np.int64))
    return np.where(wide == 1 << 31, 0, wide).astype(np.int32)


def _together(hashes: Any, rows: Any, offsets: Any, data: Any, length: int) -> None:
    starts = offsets[rows]
    units = data[starts[:, None] + np.arange(length)]
    ascii_only = units.max(axis=1) < 0x80
    if not bool(ascii_only.all()):
        _one_by_one(hashes, rows[~ascii_only], offsets, data)
        rows, units = rows[ascii_only], units[ascii_only]
    hashed = hashes[rows]
    for at in range(length):
        hashed = hashed * np.uint32(31) + units[:, at]
    hashes[rows] = hashed


def _one_by_one(hashes: Any, rows: Any, offsets: Any, data: Any) -> None:
    for row in rows.tolist():
        text = data[offsets[row] : offsets[row + 1]].tobytes()
        seed = int(hashes[row])
        hashes[row] = extend_hash(seed - ((seed & 0x80000000) << 1), text) & 0xFFFFFFFF
