"""When a unique id was made."""

from __future__ import annotations

from cometmq.protocol.message_id import decode_unique_id, month_around


def unique_id_time_ms(text: str, *, now_ms: int) -> int:
    """Return when a unique id was made, by the local time zone, which must be its client's.

    The id contains the time since the beginning of a month: of this month, or of the last one if
    that would be in the future. Ids older than about a month cannot be distinguished from younger
    ones.

    Raises:
        InvalidMessageIdError: the text is not 32 or 56 hexadecimal digits.
    """
    month_ms = decode_unique_id(text).month_ms
    month_start_ms, _ = month_around(now_ms)
    if month_start_ms + month_ms >= now_ms:
        month_start_ms, _ = month_around(month_start_ms - 1)
    return month_start_ms + month_ms
