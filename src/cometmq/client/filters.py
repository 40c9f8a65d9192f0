"""Filters of subscriptions: by tags, by an SQL92 expression over properties, or by a class.

The broker compares only the hashes of tags; the consumer compares their texts, and removes messages
with another tag of the same hash. Source: FilterAPI.buildSubscriptionData, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.frame import FRAME_BYTES_MAX
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.subscription import (
    ALL_TAGS,
    SQL92_KIND,
    TAG_KIND,
    ExpressionError,
    parse_tag_expression,
)
from cometmq.sql92 import SqlError, SqlLimitError, ignored_part

log = logging.getLogger(__name__)

_WORDS_OF_5 = re.compile("contains|startswith|endswith", re.IGNORECASE)
"""Operators of RocketMQ 5.x; for 4.9 they are names of properties."""
_SQL_MARKS = re.compile(r"[=<>']|\s(and|or|in|is|between)\s(?!\s*(\|\||$))", re.IGNORECASE)
"""Signs that most SQL expressions contain, and hardly any tags do."""

EXPRESSION_BYTES_MAX = 1024 * 1024
"""The limit of a tag or SQL expression: heartbeats contain the expressions of all subscriptions."""
_CLASS_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
"""Name and source of a class filter; the rest of the frame is for the other fields."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects messages of a topic. Make one with `tags`, `sql` or `of_class`.

    Example:
        await consumer.subscribe("orders", Filter.tags("paid || sent"))
    """

    expression: str = ALL_TAGS
    """The tag or SQL92 expression."""
    kind: str = TAG_KIND
    """``TAG`` or ``SQL92``."""
    wanted_tags: frozenset[str] = frozenset()
    """The selected tags; empty selects every tag."""
    version: int = field(default=0, compare=False)
    """Creation time in ms since 1970; the broker uses the newest filter of a group."""
    class_source: str | None = None
    """The source of a class filter, whose class `expression` names; None for other filters."""

    @classmethod
    def tags(cls, expression: str = ALL_TAGS) -> Self:
        """Select messages with one of the tags: ``a || b``. ``*`` or an empty text selects all.

        Raises:
            ConfigError: the expression is no text, has no tag, or is longer than 1 MiB.
        """
        _check_expression("tag expression", expression)
        try:
            parsed = parse_tag_expression(expression.strip())
        except ExpressionError as error:
            raise ConfigError(str(error)) from None
        if not parsed.selects_all and not parsed.tags:
            raise ConfigError(f"tag expression {expression!r} names no tag")
        if _SQL_MARKS.search(expression):
            _warn_of_sql(expression)
        elif "||" not in expression and ("," in expression or "|" in expression):
            _warn_of_separator(expression)
        return cls(parsed.text, TAG_KIND, parsed.tags, now_ms())

    @classmethod
    def sql(cls, expression: str) -> Self:
        """Select messages whose properties match an SQL92 expression: ``a > 5 AND b IS NULL``.

        It needs ``enablePropertyFilter=true`` in the settings of the brokers.

        Raises:
            ConfigError: the expression is no text, no SQL92 expression, or longer than 1 MiB.
        """
        _check_expression("SQL expression", expression)
        _check_sql(expression)
        return cls(expression, SQL92_KIND, frozenset(), now_ms())

    @classmethod
    def of_class(cls, name: str, source: str) -> Self:
        """Select messages by a class that runs in filter servers.

        The class has a method ``match(message, context)``, which returns whether a message is
        wanted. It needs brokers with filter servers: see how-to page "Filter with a class".
        Prefer tags or SQL where they suffice.

        Args:
            name: the name of the class.
            source: Python source that defines the class; it can import few modules and nothing
                else, and has no files and no network.

        Raises:
            ConfigError: name or source is no text, or empty, or too long for a request.
        """
        _check_text("class filter name", name)
        _check_text("class filter source", source)
        if not name.strip() or not source.strip():
            raise ConfigError("a class filter needs the name of a class and its source")
        size = len(name.encode()) + len(source.encode())
        # Servers close the connection for a longer one, which looks as if they were down.
        if size > _CLASS_BYTES_MAX:
            raise ConfigError(
                f"class filter {name!r:.100}: a name and source of {size} bytes: expected at most"
                f" {_CLASS_BYTES_MAX}, or what filterClassSourceSizeMax of the filter server says"
            )
        return cls(name.strip(), TAG_KIND, frozenset(), now_ms(), source)

    @classmethod
    def of(cls, filter: str | Filter) -> Filter:
        """Return a filter unchanged, and make one of a tag expression.

        Raises:
            ConfigError: it is neither, or the expression has no tag.
        """
        if isinstance(filter, str):
            return cls.tags(filter)
        if not isinstance(filter, Filter):
            raise ConfigError(f"filter {filter!r}: expected tags such as 'a || b', or a Filter")
        return filter

    def takes(self, message: StoredMessage) -> bool:
        """Return whether a message matches. Brokers compare only the hashes of tags."""
        return not self.wanted_tags or message.tags in self.wanted_tags

    def selected(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages that match."""
        return [each for each in messages if self.takes(each)] if self.wanted_tags else messages

    def data(self, topic: str) -> SubscriptionData:
        """Return the filter's entry in a heartbeat."""
        tags = sorted(self.wanted_tags)
        return SubscriptionData(
            topic=topic,
            sub_string=self.expression,
            expression_type=self.kind,
            tags_set=tags,
            code_set=[java_hash(tag) for tag in tags],
            sub_version=self.version,
            class_filter_mode=self.class_source is not None,
        )


def _check_sql(expression: str) -> None:
    """Check an expression; a broker decides where brokers differ: its limits, and its words."""
    try:
        if ignored := ignored_part(expression):
            _warn_of_ignored(expression, ignored)
    except SqlLimitError:
        return
    except SqlError as error:
        if not _WORDS_OF_5.search(expression):
            raise ConfigError(f"SQL filter {expression!r}: {error}") from None


def _check_expression(what: str, expression: str) -> None:
    _check_text(what, expression)
    size = len(expression.encode())
    if size > EXPRESSION_BYTES_MAX:
        raise ConfigError(f"{what} of {size} bytes: expected at most {EXPRESSION_BYTES_MAX}")


def _check_text(what: str, expression: object) -> None:
    if not isinstance(expression, str):
        raise ConfigError(f"{what} {expression!r}: expected text")
    try:
        expression.encode()
    except UnicodeEncodeError as error:  # else no heartbeat of this client could be sent
        raise ConfigError(f"{what} {expression!r:.100}: expected UTF-8: {error}") from None


@lru_cache(maxsize=256)
def _warn_of_separator(expression: str) -> None:
    """Log an expression once: a tag may contain these characters, but hardly does."""
    log.warning("tag expression %r selects one tag of that name: separate tags by ||", expression)


@lru_cache(maxsize=256)
def _warn_of_sql(expression: str) -> None:
    """Log an expression once: a tag may be written like this, but hardly is."""
    log.warning(
        "tag expression %r selects tags of that name: Filter.sql filters by SQL", expression
    )


@lru_cache(maxsize=256)
def _warn_of_ignored(expression: str, ignored: str) -> None:
    log.warning(
        "SQL filter %r: brokers ignore what follows the expression: %r", expression, ignored
    )
