"""White addresses: patterns of the IP addresses from which requests need no signature.

    10.1.2.3          this address           10.1.2.*     any value from here on
    10.1.2.3,10.9.9.9 one of these           10.1.2-5.*   a range
    10.1.2.{3,4}      one of these values    *            every address

IPv6 addresses have the same forms, with groups of hexadecimal digits.

Source: RemoteAddressStrategyFactory, RocketMQ 4.9. There what follows a range is ignored; here
it is compared, too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from cometmq.model.errors import ConfigError

_EVERYTHING: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_COMMA = re.compile(r",(?![^{}]*\})")
"""Separates addresses; in braces a comma separates values."""
_NUMBER = {4: re.compile(r"[0-9]{1,3}"), 8: re.compile(r"[0-9A-Fa-f]{1,4}")}
_HOSTS_MAX = 10_000

Part = tuple[tuple[int, int], ...]
"""The ranges of one part of an address, one of which its value must be in."""


class AddressSet:
    """The addresses that some patterns match.

    Args:
        patterns: the patterns; blank ones match nothing.

    Raises:
        ConfigError: one of them is no pattern of addresses.
    """

    __slots__ = ("_everything", "_patterns")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        texts = [text.strip() for pattern in patterns for text in _COMMA.split(pattern)]
        self._everything = any(text in _EVERYTHING for text in texts)
        self._patterns = tuple(_parsed(text) for text in texts if text and text not in _EVERYTHING)

    def __contains__(self, host: str) -> bool:
        """Return whether an IP address is in it."""
        if self._everything:
            return True
        if not self._patterns:
            return False
        values = _values(host)
        return any(_matches(pattern, values) for pattern in self._patterns)


def _matches(pattern: Sequence[Part], values: Sequence[int]) -> bool:
    return len(pattern) == len(values) and all(
        any(low <= value <= high for low, high in part)
        for part, value in zip(pattern, values, strict=True)
    )


@lru_cache(_HOSTS_MAX)
def _values(host: str) -> tuple[int, ...]:
    """Return the 4 bytes or the 8 groups of an address; nothing for another text."""
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return ()
    if isinstance(address, ipaddress.IPv4Address):
        return tuple(address.packed)
    packed = address.packed
    return tuple(int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2))


def _parsed(text: str) -> tuple[Part, ...]:
    is_v6 = ":" in text
    texts = _groups(text) if is_v6 else text.split(".")
    count = 8 if is_v6 else 4
    if len(texts) != count:
        raise _error(text)
    parts: list[Part] = []
    for at, part in enumerate(texts):
        if at and texts[at - 1] == "*" and part != "*":
            raise _error(text)
        parts.append(_part(text, part, count, is_first=at == 0, is_last=at == count - 1))
    return tuple(parts)


def _groups(text: str) -> list[str]:
    """Return the groups of an IPv6 address; two colons stand for groups of zeros."""
    before, found, after = text.partition("::")
    if not found:
        return text.split(":")
    head = before.split(":") if before else []
    tail = after.split(":") if after else []
    missing = 8 - len(head) - len(tail)
    if missing < 1 or "::" in after:
        raise _error(text)
    return [*head, *["0"] * missing, *tail]


def _part(text: str, part: str, count: int, *, is_first: bool, is_last: bool) -> Part:
    highest = 255 if count == 4 else 0xFFFF
    if part == "*" and not is_first:
        return ((0, highest),)
    if is_last and part.startswith("{") and part.endswith("}"):
        numbers = [_number(text, number.strip(), count) for number in part[1:-1].split(",")]
        return tuple((number, number) for number in numbers)
    low_text, is_range, high_text = part.partition("-")
    low = _number(text, low_text, count)
    if not is_range:
        return ((low, low),)
    high = _number(text, high_text, count)
    if is_first or low > high:
        raise _error(text)
    return ((low, high),)


def _number(text: str, part: str, count: int) -> int:
    number = int(part, 10 if count == 4 else 16) if _NUMBER[count].fullmatch(part) else -1
    if not 0 <= number <= (255 if count == 4 else 0xFFFF):
        raise _error(text)
    return number


def _error(text: str) -> ConfigError:
    return ConfigError(
        f"white address {text[:100]!r}: expected an IP address, or a pattern such as 10.1.2.*,"
        " 10.1.2-5.*, 10.1.2.{3,4} or *"
    )
