"""Matchers of SQL92 subscriptions, by which the store filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.broker.filters.bloom import Bits, has_all
from cometmq.protocol.properties import marker, value_of
from cometmq.store import Matcher

if TYPE_CHECKING:
    from cometmq.sql92 import Expression

_RETRY_TOPIC_MARKER = marker(b"RETRY_TOPIC")


class SqlMatcher:
    """Matches the messages for whose properties an expression is true.

    Args:
        expression: the expression.
        bits: the subscription's bits in the bit maps of messages; empty to use no bit maps.
        bitmap_bytes: the size of a bit map that may have these bits.
        born_ms: bit maps of messages up to this store time may lack them.
    """

    needs_properties = True

    def __init__(
        self, expression: Expression, bits: Bits = (), bitmap_bytes: int = 0, born_ms: int = 0
    ) -> None:
        self.expression = expression
        self._bits = bits
        self._bitmap_bytes = bitmap_bytes
        self._born_ms = born_ms

    def matches_tags(self, tags_code: int) -> bool:
        """Return True: an expression may be true for any tags."""
        return True

    def matches_bitmap(self, store_ms: int, bitmap: bytes) -> bool:
        """Return whether a message with this bit map may match."""
        if store_ms <= self._born_ms or len(bitmap) != self._bitmap_bytes:
            return True
        return has_all(bitmap, self._bits)

    def matches_properties(self, properties: bytes) -> bool:
        """Return whether the expression is true for a message with this property string."""
        return self.expression.matches(properties, 0, len(properties))


class RetryMatcher:
    """Matches messages of a retry topic by the subscription to the topic from which they came.

    A message that the group's expression no longer matches is not redelivered.
    Source: ExpressionForRetryMessageFilter, RocketMQ 5.3.

    Args:
        subscribed: the matcher of the subscription to the retry topic; None for all messages.
        matcher_of: returns the matcher of the group's expression for a topic, or None.
    """

    needs_properties = True

    def __init__(
        self, subscribed: Matcher | None, matcher_of: Callable[[str], Matcher | None]
    ) -> None:
        self._subscribed = subscribed
        self._matcher_of = matcher_of

    def matches_tags(self, tags_code: int) -> bool:
        """Return whether the subscription to the retry topic has the tag."""
        return self._subscribed is None or self._subscribed.matches_tags(tags_code)

    def matches_bitmap(self, store_ms: int, bitmap: bytes) -> bool:
        """Return True: bit maps of a retry topic have the bits of subscriptions to that topic."""
        return True

    def matches_properties(self, properties: bytes) -> bool:
        """Return whether a message matches the expression for the topic it was first sent to."""
        topic = value_of(properties, _RETRY_TOPIC_MARKER)
        matcher = None if topic is None else self._matcher_of(topic.decode("utf-8", "replace"))
        return matcher is None or matcher.matches_properties(properties)
