"""The form of a server's address: ``host:port``, an IPv6 host in brackets."""

from __future__ import annotations

import re

from cometmq.model.errors import InvalidNameError

_HOST = re.compile(r"\[[0-9A-Fa-f:.]{2,64}(%[0-9A-Za-z._-]{1,32})?\]|[0-9A-Za-z._-]{1,255}")
_PORT = re.compile(r"[0-9]{1,5}")


def bracketed(host: str) -> str:
    """Return a host as an address and a client id contain it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``; an IPv6 host is in brackets."""
    return f"{bracketed(host)}:{port}"


def check_address(text: str) -> str:
    """Return ``text`` if it is a broker's address, ``host:port``.

    Raises:
        InvalidNameError: it is not.
    """
    host, _, port = text.rpartition(":")
    if not (_HOST.fullmatch(host) and _PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise InvalidNameError(f"broker address {text[:80]!r}: expected host:port")
    return text
