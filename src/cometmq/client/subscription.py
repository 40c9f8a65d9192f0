"""What a consumer wants of a topic: an expression over tags, or SQL over properties.

The broker compares only the hashes of tags; the consumer removes what collided by comparing their
text. Source: FilterAPI.buildSubscriptionData, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Self

from cometmq.model.errors import ConfigError
from cometmq.protocol.bodies import SubscriptionData
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.subscription import (
    ALL_TAGS,
    SQL92_KIND,
    TAG_KIND,
    ExpressionError,
    parse_tag_expression,
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages of a topic are wanted. Make one with `tags` or `sql`."""

    expression: str = ALL_TAGS
    kind: str = TAG_KIND
    wanted_tags: frozenset[str] = frozenset()
    """The tags whose messages are wanted; empty for those of any tag."""
    version: int = field(default=0, compare=False)
    """When it was made, in ms since 1970; the broker keeps a group's newest."""

    @classmethod
    def tags(cls, expression: str = ALL_TAGS) -> Self:
        """Want the messages with one of the tags: ``a || b``; ``*`` or nothing wants all.

        Raises:
            ConfigError: the expression names no tag at all.
        """
        try:
            parsed = parse_tag_expression(expression.strip())
        except ExpressionError as error:
            raise ConfigError(str(error)) from None
        if not parsed.selects_all and not parsed.tags:
            raise ConfigError(f"tag expression {expression!r} names no tag")
        return cls(parsed.text, TAG_KIND, parsed.tags, _now_ms())

    @classmethod
    def sql(cls, expression: str) -> Self:
        """Want the messages whose properties satisfy an SQL92 condition: ``a > 5 AND b IS NULL``.

        Raises:
            ConfigError: the expression is empty.
        """
        if not expression.strip():
            raise ConfigError("an SQL filter needs an expression")
        return cls(expression, SQL92_KIND, frozenset(), _now_ms())

    @classmethod
    def of(cls, wanted: str | Filter) -> Filter:
        """Take a filter as it is, and a text as an expression over tags."""
        return cls.tags(wanted) if isinstance(wanted, str) else wanted

    def takes(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted, comparing the text itself."""
        return not self.wanted_tags or tag in self.wanted_tags

    def data(self, topic: str) -> SubscriptionData:
        """Say it as a heartbeat does."""
        tags = sorted(self.wanted_tags)
        return SubscriptionData(
            topic=topic,
            sub_string=self.expression,
            expression_type=self.kind,
            tags_set=tags,
            code_set=[java_hash(tag) for tag in tags],
            sub_version=self.version,
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
