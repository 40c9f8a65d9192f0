"""Subscriptions: the expression of a consumer, and the matcher by which the store filters.

A matcher of None matches every message. Tags are compared by their hash codes; the client compares
the tags themselves, and removes the rare message with another tag of the same hash.

An expression that does not compile is refused: in a pull with code 23 and the reason. SQL92 is
refused with code 1 while property filters are off. Source: PullMessageProcessor and
ExpressionMessageFilter, RocketMQ 5.3, which delivers everything instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from cometmq.broker.filters.expressions import COMPILED, EXPRESSION_CHARS_MAX, QUICK_CHARS_MAX
from cometmq.broker.filters.matchers import SqlMatcher
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.subscription import (
    ALL_TAGS,
    SQL92_KIND,
    ExpressionError,
    is_tag_kind,
    parse_tag_expression,
)
from cometmq.remoting.slices import off_loop
from cometmq.store import Matcher, TagMatcher

if TYPE_CHECKING:
    from cometmq.sql92 import Expression

PARSE_FAILED = "parse the consumer's subscription failed"
_NOT_SUPPORTED = "The broker does not support consumer to filter message by"
SQL_IS_OFF = f"{_NOT_SUPPORTED} SQL92; set enablePropertyFilter=true"
_SHOWN_CHARS = 40


class Subscription:
    """The subscription of a group to one topic, from a heartbeat.

    Args:
        data: its entry in the heartbeat. An SQL92 expression is compiled here.
    """

    __slots__ = ("data", "expression", "is_by_tags", "problem", "tag_matcher")

    def __init__(self, data: SubscriptionData) -> None:
        self.data = data
        self.is_by_tags = is_tag_kind(data.expression_type)
        self.tag_matcher = _tag_matcher_of(data) if self.is_by_tags else None
        """Its matcher, if it is by tags."""
        self.expression: Expression | None = None
        """Its SQL92 expression; None for tags, and for a text that does not compile."""
        self.problem = ""
        """Why its expression does not compile; empty if it does."""
        if not self.is_by_tags:
            self._compile()

    def _compile(self) -> None:
        try:
            _check_form(self.data.sub_string, self.data.expression_type)
        except ResponseError as problem:
            self.problem = problem.remark
            return
        compiled = COMPILED.find(self.data.sub_string)
        if isinstance(compiled, str):
            self.problem = compiled
        else:
            self.expression = compiled

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.data.topic

    @property
    def version(self) -> int:
        """When the client subscribed, in ms; of two expressions the newer one applies."""
        return self.data.sub_version

    def selects_as(self, other: Subscription) -> bool:
        """Return whether another subscription to the topic has the same expression."""
        mine, others = self.data, other.data
        return (
            mine.sub_string == others.sub_string
            and mine.expression_type == others.expression_type
            and mine.class_filter_mode == others.class_filter_mode
            and mine.code_set == others.code_set
        )


def are_made_quickly(entries: Iterable[SubscriptionData]) -> bool:
    """Return whether a `Subscription` of each entry is made in about a millisecond."""
    return (
        sum(
            COMPILED.chars_to_compile(entry.sub_string)
            for entry in entries
            if not is_tag_kind(entry.expression_type)
        )
        <= QUICK_CHARS_MAX
    )


def matcher_of(
    expression: str | None, kind: str | None, property_filter_enabled: bool
) -> Matcher | None:
    """Return the matcher of an expression in a pull.

    Raises:
        ResponseError: 23, the expression does not compile; 1, SQL92 is switched off.
        PrerequisiteError: it has to be compiled off the event loop first.
    """
    if not is_tag_kind(kind):
        return _sql_matcher_of(expression or "", kind, property_filter_enabled)
    _check_length(expression or "")
    try:
        parsed = parse_tag_expression(expression)
    except ExpressionError as problem:
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, PARSE_FAILED) from problem
    return None if parsed.selects_all else TagMatcher(parsed.codes)


def check_client_subscription(data: SubscriptionData | None, property_filter_enabled: bool) -> None:
    """Refuse a subscription that a pull would refuse (CHECK_CLIENT_CONFIG).

    Raises:
        ResponseError: 1 or 23.
        PrerequisiteError: it has to be compiled off the event loop first.
    """
    if data is not None and not is_tag_kind(data.expression_type):
        _sql_matcher_of(data.sub_string, data.expression_type, property_filter_enabled)


def _sql_matcher_of(text: str, kind: str | None, property_filter_enabled: bool) -> Matcher:
    if not property_filter_enabled:
        problem = f"{_NOT_SUPPORTED} {str(kind)[:_SHOWN_CHARS]}, expected TAG or SQL92"
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR, SQL_IS_OFF if kind == SQL92_KIND else problem
        )
    _check_form(text, kind)
    if COMPILED.chars_to_compile(text) > QUICK_CHARS_MAX:
        raise PrerequisiteError(partial(off_loop, partial(COMPILED.find, text)))
    compiled = COMPILED.find(text)
    if isinstance(compiled, str):
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, compiled)
    return SqlMatcher(compiled)


def _check_form(text: str, kind: str | None) -> None:
    """Refuse what need not be compiled to be refused."""
    if kind != SQL92_KIND:
        problem = f"met the expression type {str(kind)[:_SHOWN_CHARS]!r}, expected TAG or SQL92"
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, problem)
    _check_length(text)


def _check_length(text: str) -> None:
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ResponseError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"an expression of {len(text)} characters, expected {EXPRESSION_CHARS_MAX} at most",
        )


def _tag_matcher_of(data: SubscriptionData) -> Matcher | None:
    if data.class_filter_mode or not data.sub_string or data.sub_string == ALL_TAGS:
        return None
    # As in RocketMQ the codes of the heartbeat decide, not the text: without any, nothing matches.
    return TagMatcher(frozenset(data.code_set))
