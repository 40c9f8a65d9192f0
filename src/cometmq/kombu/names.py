"""Names of topics for Kombu's queues and exchanges: reversible, and without collisions.

topic of a queue       := "kombu-" [host "||"] name
topic of a priority    := topic of its queue "|p" digit
topic of an exchange   := "kombu-" [host "||"] "|x" name      what short-lived queues read
topic of the bindings  := "kombu-" [host "||"] "|t"
host, name             := letters, digits, "_" and "-" as they are; "|" two hex digits for each
                          byte of other characters; "|h" and a hash if it is too long
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

PREFIX = "kombu-"
HOST_MAX, NAME_MAX = 36, 74
"""Longer ones are hashed: a topic has at most 127 characters, its retry topic for pop 255."""
_HASH = 34
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_ESCAPE = re.compile(r"\|([0-9a-f]{2})")


@lru_cache(1000)
def encode(name: str, longest: int = NAME_MAX) -> str:
    """Return a name with the characters that a topic may have, at most ``longest`` of them."""
    text = "".join(chr(byte) if byte in _PLAIN else f"|{byte:02x}" for byte in name.encode())
    if len(text) <= longest:
        return text
    kept = re.sub(r"\|[0-9a-f]?$", "", text[: longest - _HASH])
    return f"{kept}|h{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def decode(text: str) -> str | None:
    """Return the name that was encoded; None if it was hashed."""
    if "|h" in text:
        return None
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1").decode()


class Names:
    """The topics of one virtual host.

    Args:
        virtual_host: from the URL; "/" is the default one.
    """

    def __init__(self, virtual_host: str = "/") -> None:
        host = virtual_host.strip("/")
        self._prefix = PREFIX + (f"{encode(host, HOST_MAX)}||" if host else "")

    def queue(self, name: str) -> str:
        """Return the topic of a queue; its group has the same name."""
        return self._prefix + encode(name)

    def priority(self, name: str, priority: int) -> str:
        """Return the topic of the messages with one priority."""
        return f"{self.queue(name)}|p{priority}" if priority else self.queue(name)

    def is_queue(self, topic: str) -> bool:
        """Return whether a topic is of a queue of this virtual host."""
        name = topic.removeprefix(self._prefix)
        return name != topic and "||" not in name

    def exchange(self, name: str) -> str:
        """Return the topic of an exchange, which short-lived queues read."""
        return f"{self._prefix}|x{encode(name)}"

    def bindings(self) -> str:
        """Return the topic of the bindings."""
        return f"{self._prefix}|t"


def tag(routing_key: str) -> str:
    """Return the tag of a routing key, by which a broker filters."""
    return hashlib.sha256(routing_key.encode()).hexdigest()[:16]
