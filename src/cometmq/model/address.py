"""The form of a server's address."""

from __future__ import annotations

import re

from cometmq.model.errors import InvalidNameError

_HOST = re.compile(r"\[[0-9A-Fa-f:.]{2,64}(%[0-9A-Za-z._-]{1,32})?\]|[0-9A-Za-z._-]{1,255}")
_PORT = re.compile(r"[0-9]{1,5}")


def check_address(text: str) -> str:
    """Return ``text`` if it is a broker's address, ``host:port``.

    Raises:
        InvalidNameError: it is not.
    """
    host, _, port = text.rpartition(":")
    if not (_HOST.fullmatch(host) and _PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise InvalidNameError(f"broker address {text[:80]!r}: expected host:port")
    return text
