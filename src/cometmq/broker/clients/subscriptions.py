"""Subscriptions: the expression of a consumer, and the matcher by which the store filters.

A matcher of None matches every message. Tags are compared by their hash codes; the client compares
the tags themselves, and removes the rare message with another tag of the same hash.

``_matcher_of_other_kind`` is the extension point for further kinds of expressions. All kinds but
tags are refused: code 1 while property filters are off, else code 23. Source:
PullMessageProcessor and ExpressionMessageFilter, RocketMQ 5.3, which delivers everything instead.
"""

from __future__ import annotations

from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies import SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.subscription import (
    ALL_TAGS,
    ExpressionError,
    is_tag_kind,
    parse_tag_expression,
)
from cometmq.store import Matcher, TagMatcher

EXPRESSION_CHARS_MAX = 32 * 1024
"""The limit of an expression in a pull; heartbeats have a limit of their size."""
PARSE_FAILED = "parse the consumer's subscription failed"


class Subscription:
    """The subscription of a group to one topic, from a heartbeat."""

    __slots__ = ("_matcher", "data")

    def __init__(self, data: SubscriptionData) -> None:
        self.data = data
        self._matcher = _tag_matcher_of(data) if is_tag_kind(data.expression_type) else None

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.data.topic

    @property
    def version(self) -> int:
        """When the client subscribed, in ms; of two expressions the newer one applies."""
        return self.data.sub_version

    def matcher(self, property_filter_enabled: bool) -> Matcher | None:
        """Return the matcher of this subscription.

        Raises:
            ResponseError: the kind of expression is not served.
        """
        if is_tag_kind(self.data.expression_type):
            return self._matcher
        return _matcher_of_other_kind(self.data.expression_type, property_filter_enabled)


def matcher_of(
    expression: str | None, kind: str | None, property_filter_enabled: bool
) -> Matcher | None:
    """Return the matcher of an expression in a pull.

    Raises:
        ResponseError: 23, the expression cannot be understood; 1, its kind is switched off.
    """
    if not is_tag_kind(kind):
        return _matcher_of_other_kind(kind, property_filter_enabled)
    if expression is not None and len(expression) > EXPRESSION_CHARS_MAX:
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, PARSE_FAILED)
    try:
        parsed = parse_tag_expression(expression)
    except ExpressionError as problem:
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, PARSE_FAILED) from problem
    return None if parsed.selects_all else TagMatcher(parsed.codes)


def check_client_subscription(data: SubscriptionData | None, property_filter_enabled: bool) -> None:
    """Refuse a subscription that a pull would refuse (CHECK_CLIENT_CONFIG).

    Raises:
        ResponseError: 1 or 23.
    """
    if data is not None and not is_tag_kind(data.expression_type):
        _matcher_of_other_kind(data.expression_type, property_filter_enabled)


def _matcher_of_other_kind(kind: str | None, property_filter_enabled: bool) -> Matcher | None:
    if not property_filter_enabled:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
        )
    raise ResponseError(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"expression type {str(kind)[:40]!r} is not served by this broker, expected TAG",
    )


def _tag_matcher_of(data: SubscriptionData) -> Matcher | None:
    if data.class_filter_mode or not data.sub_string or data.sub_string == ALL_TAGS:
        return None
    # As in RocketMQ the codes of the heartbeat decide, not the text: without any, nothing matches.
    return TagMatcher(frozenset(data.code_set))
