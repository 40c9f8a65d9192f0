"""Times in the settings of pipelines."""

from __future__ import annotations

from cometmq.model.errors import ConfigError
from cometmq.model.times import time_of


def instant_ms(name: str, text: str) -> int | None:
    """Return the ms since 1970 that a setting means, by the rule of `time_of`; None for no text.

    Args:
        name: of the setting, for the error.
        text: its value.

    Raises:
        ConfigError: it is no time.
    """
    if not text:
        return None
    try:
        return time_of(text)
    except ConfigError as error:
        raise ConfigError(f"{name}={error}") from None
