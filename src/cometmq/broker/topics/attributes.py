"""Attributes of topics: how changes to them are written, and which there are.

    changes := change ("," change)*      change := "+" key "=" value | "-" key

A new topic can only get attributes, not lose any. Kinds of clean-up that the store does not have
are refused, as is a change of what holds for good once a topic exists.

Source: AttributeParser, AttributeUtil and TopicAttributes, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cometmq.model.errors import ConfigError

MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"
CHANGES_MAX: Final = 64
SEPARATORS_MAX: Final = 1_000
"""Commas, of which some may have nothing between them."""

_ALLOWED: Final = {
    "queue.type": re.compile("SimpleCQ|BatchCQ"),
    "cleanup.policy": re.compile("DELETE"),
    MESSAGE_TYPE: re.compile("NORMAL|FIFO|DELAY|TRANSACTION|UNSPECIFIED|MIXED"),
    "reserve.time": re.compile("-?[0-9]{1,18}"),
}
_FOR_GOOD: Final = frozenset({"queue.type", "cleanup.policy"})


def with_changes(attributes: Mapping[str, str], text: str, *, is_new: bool) -> dict[str, str]:
    """Return a topic's attributes after the changes that ``text`` describes.

    Args:
        attributes: those it has now.
        text: the changes; empty for none.
        is_new: whether the topic is only being made.

    Raises:
        ConfigError: the text is malformed, or names what does not exist or may not be changed.
    """
    if text.count(",") > SEPARATORS_MAX:
        raise ConfigError(
            f"changes of attributes in {len(text)} characters, expected at most {CHANGES_MAX}"
        )
    changed = dict(attributes)
    changes = [part.strip() for part in text.split(",") if part.strip()]
    if len(changes) > CHANGES_MAX:
        raise ConfigError(f"{len(changes)} changes of attributes, expected at most {CHANGES_MAX}")
    for change in changes:
        _apply(change, changed, is_new)
    return changed


def _apply(change: str, attributes: dict[str, str], is_new: bool) -> None:
    sign, (key, equals, value) = change[0], change[1:].partition("=")
    key, value = key.strip(), value.strip()
    if sign not in "+-" or bool(equals) != (sign == "+"):
        raise ConfigError(f"attribute change {change[:80]!r}: expected +key=value or -key")
    if key not in _ALLOWED:
        raise ConfigError(f"unsupported attribute {key[:80]!r}: expected {', '.join(_ALLOWED)}")
    if not is_new and key in _FOR_GOOD and attributes.get(key) != value:
        raise ConfigError(f"attribute {key} cannot be changed once the topic exists")
    if sign == "-":
        _remove(key, attributes, is_new)
        return
    if not _ALLOWED[key].fullmatch(value):
        raise ConfigError(f"attribute {key}={value[:80]}: expected {_ALLOWED[key].pattern}")
    attributes[key] = value


def _remove(key: str, attributes: dict[str, str], is_new: bool) -> None:
    if is_new or key not in attributes:
        raise ConfigError(f"attribute {key} cannot be removed: the topic does not have it")
    del attributes[key]
