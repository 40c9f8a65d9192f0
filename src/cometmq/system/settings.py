"""Settings: frozen dataclasses whose fields know their RocketMQ key, unit and range.

Source: ours; the keys are those of RocketMQ's properties files.
"""

from __future__ import annotations

import dataclasses
from typing import Any


def setting(
    default: Any,
    *,
    key: str | None = None,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declare a field of a settings dataclass.

    Args:
        default: the value when nothing sets it; an immutable value.
        key: the name in RocketMQ's properties files; None for a setting that is ours alone.
        unit: of the value, for help texts: ``ms``, ``bytes``, ``%``.
        low, high: the inclusive range of a number.
        choices: the allowed texts.
    """
    facts = {"key": key, "unit": unit, "low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata=facts)
