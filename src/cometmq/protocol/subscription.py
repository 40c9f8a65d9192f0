"""Tag expressions: what a subscription's text selects, as tags and as their hash codes.

expression := "*" | nothing | piece { "||" piece }

The text is cut at ``||`` as Java's ``String.split`` does it (empty pieces at the end vanish),
pieces are trimmed of characters up to U+0020, and empty ones dropped. A text with no piece at all
(``||``) is an error; one with only blank pieces selects nothing.

Pure: no input or output. Source: FilterAPI.buildSubscriptionData, RocketMQ 5.3.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from cometmq.model.errors import CometError
from cometmq.protocol.hashing import java_hash

ALL_TAGS = "*"
TAG_KIND = "TAG"
SQL92_KIND = "SQL92"

# What Java's String.trim takes away: every character up to and including the blank.
_TRIMMED = "".join(map(chr, range(0x21)))


class ExpressionError(CometError):
    """A subscription's expression cannot be understood."""


class TagExpression(NamedTuple):
    """A tag expression, understood."""

    text: str
    """As sent, ``*`` when nothing was sent."""
    tags: frozenset[str]
    """The tags it names; empty for ``*``."""
    codes: frozenset[int]
    """Java's hash codes of the tags, signed 32-bit."""

    @property
    def selects_all(self) -> bool:
        """Whether every message matches, tagged or not."""
        return self.text == ALL_TAGS


_EVERYTHING = TagExpression(ALL_TAGS, frozenset(), frozenset())


def is_tag_kind(kind: str | None) -> bool:
    """Whether an expression type means tags: ``TAG``, or none given."""
    return kind is None or kind == "" or kind == TAG_KIND


@lru_cache(maxsize=1024)
def parse_tag_expression(text: str | None) -> TagExpression:
    """Understand a tag expression.

    Args:
        text: for example ``TagA || TagB``; None, nothing and ``*`` select every message.

    Raises:
        ExpressionError: the text has separators and nothing else.
    """
    if not text or text == ALL_TAGS:
        return _EVERYTHING
    tags = frozenset(tag for piece in _pieces(text) if (tag := piece.strip(_TRIMMED)))
    return TagExpression(text, tags, frozenset(java_hash(tag) for tag in tags))


def _pieces(text: str) -> list[str]:
    pieces = text.split("||")
    while pieces and not pieces[-1]:
        pieces.pop()
    if not pieces:
        raise ExpressionError(f"tag expression {text!r} has separators but no tag")
    return pieces
