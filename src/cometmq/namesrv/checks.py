"""Checks of names and addresses in requests to a name server.

RocketMQ accepts any text. We refuse what could do harm later: control characters, blanks, slashes
and very long texts. Brokers name topics after themselves, so dots are allowed here
though no client may create such a topic.
"""

from __future__ import annotations

import re

from cometmq.model.errors import InvalidNameError

NAME_CHARACTERS_MAX = 512

_NAME = re.compile(r"[^\x00-\x20\x7f-\xa0/\\\ufffe\uffff]+")
_OTHER_ADDRESS = re.compile(r"[0-9A-Za-z._:%\[\]-]{0,300}")


def is_name(text: str) -> bool:
    """Return whether ``text`` can name a topic, a broker or a cluster."""
    return len(text) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(text) is not None


def check_name(text: str, what: str) -> str:
    """Return ``text`` if it can name a topic, a broker or a cluster.

    Raises:
        InvalidNameError: it is blank, too long or has characters no name may have.
    """
    if not is_name(text):
        raise InvalidNameError(
            f"{what} {text[:80]!r}: expected 1 to {NAME_CHARACTERS_MAX} characters without"
            " blanks, slashes and control characters"
        )
    return text


def check_other_address(text: str) -> str:
    """Return ``text`` if it looks like an address; what only brokers use is not checked further.

    Raises:
        InvalidNameError: it has characters no address has, or no end.
    """
    if not _OTHER_ADDRESS.fullmatch(text):
        raise InvalidNameError(f"address {text[:80]!r}: expected host:port")
    return text
