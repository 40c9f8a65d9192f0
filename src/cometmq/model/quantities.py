"""Durations and sizes as texts that people read."""

from __future__ import annotations

UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def duration(value_ms: int) -> str:
    """Return a duration with its two largest units, such as ``2 h 5 min``."""
    parts: list[str] = []
    rest = max(value_ms, 0)
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            return " ".join(parts)
    return " ".join(parts) if parts else f"{rest} ms"


def size(value: int) -> str:
    """Return a number of bytes with its unit."""
    amount, unit = float(value), BYTES[0]
    for unit in BYTES:
        if abs(amount) < 1024 or unit == BYTES[-1]:
            break
        amount /= 1024
    return f"{value} B" if unit == "B" else f"{amount:.1f} {unit}"
