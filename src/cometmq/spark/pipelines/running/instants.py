"""Times that people write.

Source: ours.
"""

from __future__ import annotations

from datetime import UTC, datetime

from cometmq.model.errors import ConfigError


def instant_ms(name: str, text: str) -> int | None:
    """Return the ms since 1970 that a text means; None for no text.

    Args:
        name: of the setting, for the error.
        text: ms since 1970, or ISO 8601 as ``2026-11-21T18:00``, in UTC unless it says otherwise.

    Raises:
        ConfigError: it is neither.
    """
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: expected ms since 1970 or 2026-11-21T18:00") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
