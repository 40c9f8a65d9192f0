"""The subscriptions of each member of a group, and differences between them.

client id -> view := (topic, expression, kind, is_class) for each of its topics but the retry topic

RocketMQ keeps one table per group, in which the last heartbeat wins: members that disagree lose
messages without any warning. Here the view of each member is kept too; one that differs from that
of most others is logged once, when it changes. Members without topics do not count, nor does the
order of tags in an expression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from cometmq.broker.filters.subscriptions import Subscription
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.subscription import ExpressionError, is_tag_kind, parse_tag_expression
from cometmq.system.failure_log import RateLimitedLog

LOGGED_CHARS_MAX = 200
LOGGED_TOPICS_MAX = 10
COMPARED_TOPICS_MAX = 100
"""Topics that are subscribed by different texts and looked at closely."""


class Subscribed(NamedTuple):
    """The subscription of a member to one topic."""

    topic: str
    expression: str
    kind: str
    is_class: bool = False
    """Whether the expression names the class of a class filter, whose kind is that of tags."""

    def meaning(self) -> object:
        """Return the value to compare: the set of tags, or the text of other kinds."""
        if self.is_class or not is_tag_kind(self.kind):
            return tuple(self)
        try:
            return self.topic, parse_tag_expression(self.expression).tags
        except ExpressionError:
            return self.topic, self.expression


class Subscriptions(tuple[Subscribed, ...]):
    """The subscriptions of a member, in the order of the topics; the hash is computed once."""

    def __hash__(self) -> int:
        known: int | None = getattr(self, "_hash", None)
        if known is None:
            known = self._hash = super().__hash__()
        return known


class MemberSubscriptions:
    """The subscriptions of each member of one group.

    Args:
        group: the group's name.
        changes: the log of differences; clients decide how many they are.
    """

    def __init__(self, group: str, changes: RateLimitedLog) -> None:
        self._group = group
        self._changes = changes
        self._by_client: dict[str, Subscriptions] = {}
        self._shared: Counter[Subscriptions] = Counter()
        """Each view, held once, and how many members have it."""

    def note(self, client_id: str, view: Subscriptions) -> None:
        """Set the subscriptions of a heartbeat; log new differences to other members."""
        if self._by_client.get(client_id) == view:
            return
        self.forget(client_id)
        self._log(client_id, view)
        self._shared[view] += 1
        self._by_client[client_id] = view

    def forget(self, client_id: str) -> None:
        """Remove a member that has left."""
        view = self._by_client.pop(client_id, None)
        if view is None:
            return
        self._shared[view] -= 1
        if not self._shared[view]:
            del self._shared[view]

    def by_client(self) -> dict[str, Subscriptions]:
        """Return the subscriptions of each member by client id."""
        return dict(self._by_client)

    def _log(self, client_id: str, view: Subscriptions) -> None:
        others = max((o for o in self._shared if o), key=self._shared.__getitem__, default=())
        if not view or not others:
            return
        for topic, has, others_have in _differing(view, others):
            self._changes.add(
                "subscription of a member differs from its group "
                "group=%s member=%s topic=%s has=%s others_have=%s",
                self._group,
                client_id,
                topic,
                _shown(has),
                _shown(others_have),
            )


def subscriptions_of(subscriptions: Iterable[Subscription]) -> Subscriptions:
    """Return the subscriptions of a member, without its retry topic."""
    view = Subscriptions(
        sorted(
            Subscribed(
                s.topic,
                s.data.sub_string or "*",
                s.data.expression_type or "TAG",
                s.data.class_filter_mode,
            )
            for s in subscriptions
            if not s.topic.startswith(RETRY_PREFIX)
        )
    )
    hash(view)
    return view


def _differing(
    one: Subscriptions, other: Subscriptions
) -> Iterator[tuple[str, Subscribed | None, Subscribed | None]]:
    these, those = ({subscribed.topic: subscribed for subscribed in view} for view in (one, other))
    others = [
        topic for topic in these.keys() | those.keys() if these.get(topic) != those.get(topic)
    ]
    differing = (
        (topic, these.get(topic), those.get(topic))
        for topic in sorted(others)[:COMPARED_TOPICS_MAX]
        if _meaning(these.get(topic)) != _meaning(those.get(topic))
    )
    yield from islice(differing, LOGGED_TOPICS_MAX)


def _meaning(subscribed: Subscribed | None) -> object:
    return None if subscribed is None else subscribed.meaning()


def _shown(subscribed: Subscribed | None) -> str:
    return "nothing" if subscribed is None else repr(subscribed.expression[:LOGGED_CHARS_MAX])
