"""Filter data: the SQL92 expression of each group for each topic, kept over restarts.

    table := topic -> group -> FilterData          (config/consumerFilter.json, as in RocketMQ)

Heartbeats register expressions. A newer version of a subscription replaces an older one, which is
that of another member; once the group has ended the subscription, any version does, for the clocks
of clients may be wrong. An expression that does not compile removes the older one, and pulls of its
group are refused with the reason. A subscription that ends, or selects by tags from now on, is
dead: new messages still get its bits, for a consumer that subscribes again, and retries are not
filtered by it. It is removed after a day, or earlier if the table has no room for another one.

The bit map of a message has the bits of every subscription to its topic that it matches, dead ones
included (see ``bloom.py``); it is computed when the message is stored. A message gets none if its
topic has so many or so long expressions that this would take long; consumers then read its
properties.

Used in the event loop's thread, and before it runs. Source: ConsumerFilterManager and
CommitLogDispatcherCalcBitMap, RocketMQ 5.3, whose table has no limits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import field

from cometmq.broker.checks import check_group, check_subscribed_topic, invalid
from cometmq.broker.config import BrokerSettings
from cometmq.broker.filters.bloom import BloomFilter, bits_of, set_all
from cometmq.broker.filters.matchers import RetryMatcher, SqlMatcher
from cometmq.broker.filters.subscriptions import SQL_IS_OFF, Subscription
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.bodies.base import Part
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.protocol.subscription import is_tag_kind
from cometmq.remoting.slices import Slices
from cometmq.store import Matcher
from cometmq.store.config_files import JsonFile, entry_text
from cometmq.system.clock import Clock

if TYPE_CHECKING:
    from cometmq.sql92 import Expression

log = logging.getLogger(__name__)

ENTRIES_MAX: Final = 10_000
CHARS_MAX: Final = 4_000_000
"""Limits of the table, and of the characters of its expressions; a further one is refused, unless
others are dead."""
ROOM_PERCENT: Final = 10
"""Percent of the table that is free after dead expressions were removed to make room."""
BITMAP_COST_MAX: Final = 8_192
"""The limit of the cost of one bit map."""
BATCH_COST_MAX: Final = 50_000
"""The limit for the messages of one batch together."""
_EXPRESSION_COST: Final = 20
"""The cost of an expression beside its characters."""
_BYTES_SEARCHED: Final = 12
"""The bytes that one CONTAINS searches for a cost of 1."""
_DEAD_BEFORE_START_MS: Final = 30_000
_AHEAD_MS_MAX: Final = 24 * 3_600_000
"""How far the clocks of clients may be ahead, for versions in the file."""
_SHOWN_MAX: Final = 10
"""The number of ignored entries of the file that are logged one by one."""

_NO_ROOM = "the broker has no room for more expressions"
NO_FILTER_DATA = "The broker's consumer filter data is not exist!Your expression may be wrong!"


class BloomData(Part, kw_only=True):
    """The bits of a subscription."""

    bit_num: int = 0
    bit_pos: list[int] = field(default_factory=list)


class StoredFilter(Part, kw_only=True):
    """The expression of a group for a topic, as in the file and in responses."""

    bloom_filter_data: BloomData | None = None
    born_time: int = 0
    client_version: int = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: int = 0
    expression: str = ""
    expression_type: str = ""
    topic: str = ""


class StoredTopic(Part, kw_only=True):
    """The expressions for a topic, as in the file."""

    group_filter_data: dict[str, StoredFilter] = field(default_factory=dict)
    topic: str = ""


class StoredFilters(Part, kw_only=True):
    """The content of the file."""

    filter_data_by_topic: dict[str, StoredTopic] = field(default_factory=dict)


class _AnyTopic(Part, kw_only=True):
    """As `StoredTopic`; its entries are converted one by one."""

    group_filter_data: dict[str, Any] = field(default_factory=dict)


class _AnyFilters(Part, kw_only=True):
    """As `StoredFilters`; its topics are converted one by one."""

    filter_data_by_topic: dict[str, Any] = field(default_factory=dict)


class FilterData:
    """The expression of a group for a topic.

    Args:
        topic, group: the subscription's topic, and its consumer group.
        text, kind: the expression and its type.
        expression: the same, compiled.
        positions: the positions of its bits in a bit map.
        born_ms: when it was registered: bit maps of later messages have its bits.
        version: the version of the client's subscription.
    """

    __slots__ = (
        "bits", "born_ms", "dead_ms", "expression", "group", "has_ended", "kind", "positions",
        "searches", "text", "topic", "version",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        group: str,
        text: str,
        kind: str,
        expression: Expression,
        positions: tuple[int, ...],
        born_ms: int,
        version: int,
    ) -> None:
        self.topic = topic
        self.group = group
        self.text = text
        self.kind = kind
        self.searches = text.upper().count("CONTAINS")
        """How many CONTAINS it has at most."""
        self.expression = expression
        self.positions = positions
        self.bits = bits_of(positions)
        self.born_ms = born_ms
        self.dead_ms = 0
        self.has_ended = False
        """Whether its group has ended the subscription; after a start this is not known."""
        self.version = version

    @property
    def is_dead(self) -> bool:
        """Whether no member of the group subscribes."""
        return self.dead_ms >= self.born_ms

    @property
    def cost(self) -> int:
        """How long an evaluation takes without its CONTAINS, in characters."""
        return len(self.text) + _EXPRESSION_COST

    def stored(self, size_bits: int) -> StoredFilter:
        """Return the entry of the file."""
        return StoredFilter(
            bloom_filter_data=BloomData(bit_num=size_bits, bit_pos=list(self.positions)),
            born_time=self.born_ms,
            client_version=self.version,
            consumer_group=self.group,
            dead=self.is_dead,
            dead_time=self.dead_ms,
            expression=self.text,
            expression_type=self.kind,
            topic=self.topic,
        )


class _Topic:
    """The expressions for one topic."""

    __slots__ = ("cost", "groups", "searches")

    def __init__(self) -> None:
        self.groups: dict[str, FilterData] = {}
        self.cost = 0
        self.searches = 0

    def bitmap_cost(self, properties_bytes: int) -> int:
        """Return how long all expressions take for a message."""
        return self.cost + self.searches * properties_bytes // _BYTES_SEARCHED


class FilterTable:
    """The filter data of all groups.

    Args:
        settings: returns the current settings of the broker.
        file: consumerFilter.json.
        clock: the time in ms.
    """

    def __init__(
        self, settings: Callable[[], BrokerSettings], file: JsonFile, *, clock: Clock
    ) -> None:
        self._settings = settings
        self._file = file
        self._clock = clock
        given = settings()
        self.bloom = BloomFilter(
            given.max_error_rate_of_bloom_filter, given.expect_consumer_num_use_filter
        )
        self._topics: dict[str, _Topic] = {}
        self._by_group: dict[str, dict[str, FilterData]] = {}
        """The expressions by group and topic."""
        self._count = self._chars = 0
        self._stored_ms = clock.now_ms()
        """The latest store time of a message, or the time of the start: another clock, or this one
        before it was set back, may be ahead."""
        self._changed = False
        self._is_full = False

    def find(self, topic: str, group: str) -> FilterData | None:
        """Return the expression of a group for a topic, dead ones included."""
        found = self._by_group.get(group)
        return None if found is None else found.get(topic)

    # --- matching -----------------------------------------------------------------------------

    def matcher(self, group: str, subscription: Subscription, enabled: bool) -> Matcher | None:
        """Return the matcher of a group's subscription.

        Args:
            group: its name.
            subscription: the subscription in the heartbeats of the group.
            enabled: whether filtering by properties is switched on.

        Raises:
            ResponseError: 27, the expression does not compile, or the table is full; 28, the
                table has an older version of it; 1, filtering by properties is off.
        """
        if subscription.is_by_tags:
            return subscription.tag_matcher
        data = self.find(subscription.topic, group)
        if data is None:
            reason = subscription.problem or (_NO_ROOM if self._is_full else "")
            raise ResponseError(
                ResponseCode.FILTER_DATA_NOT_EXIST, f"{NO_FILTER_DATA} {reason}".rstrip()
            )
        if data.version < subscription.version:
            raise ResponseError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        if not enabled:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, SQL_IS_OFF)
        return self._matcher_of(data)

    def retry_matcher(self, topic: str, subscribed: Matcher | None) -> Matcher | None:
        """Return the matcher of a retry topic, if its group's expressions apply to it.

        Args:
            topic: the retry topic.
            subscribed: the matcher of the subscription to it.
        """
        group = topic.removeprefix(RETRY_PREFIX)
        if group not in self._by_group:
            return subscribed

        def matcher_of(first_topic: str) -> Matcher | None:
            data = self.find(first_topic, group)
            return None if data is None or data.is_dead else SqlMatcher(data.expression)

        return RetryMatcher(subscribed, matcher_of)

    def _matcher_of(self, data: FilterData) -> SqlMatcher:
        return SqlMatcher(data.expression, data.bits, self.bloom.size_bytes, data.born_ms)

    def bitmap_of(self, topic: str, properties: bytes, store_ms: int, at_once: int) -> bytes:
        """Return the bit map of a message that is being stored; empty if it gets none.

        Args:
            topic: its topic.
            properties: its property string.
            store_ms: its store time, by the clock of the master that stored it.
            at_once: how many messages are stored together.
        """
        self._stored_ms = max(self._stored_ms, store_ms)
        found = self._topics.get(topic)
        if found is None or not self._settings().enable_calc_filter_bit_map:
            return b""
        cost = found.bitmap_cost(len(properties))
        if cost > BITMAP_COST_MAX or cost * at_once > BATCH_COST_MAX:
            return b""
        bitmap = bytearray(self.bloom.size_bytes)
        for data in found.groups.values():
            if data.expression.matches(properties, 0, len(properties)):
                set_all(bitmap, data.bits)
        return bytes(bitmap)

    # --- registration -------------------------------------------------------------------------

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """Register the subscriptions of a group; its other expressions are dead from now on."""
        topics = self._by_group.get(group)
        wanted: set[str] | None = None if topics is None else set()
        for subscription in subscriptions:
            if subscription.is_by_tags:
                continue
            if wanted is not None:
                wanted.add(subscription.topic)
            self._register(group, subscription)
        if topics is not None and wanted is not None:
            self._end(data for topic, data in topics.items() if topic not in wanted)

    def unregister(self, group: str) -> None:
        """Note that a group has no members any more."""
        topics = self._by_group.get(group)
        if topics is not None:
            self._end(topics.values())

    def _register(self, group: str, subscription: Subscription) -> None:
        old = self.find(subscription.topic, group)
        text, kind = subscription.data.sub_string, subscription.data.expression_type
        if old is None:
            self._add(group, subscription)
        elif subscription.version < old.version and not old.has_ended:
            return
        elif (subscription.version == old.version and not old.has_ended) or (text, kind) == (
            old.text,
            old.kind,
        ):
            if old.is_dead or subscription.version != old.version:
                self._changed = True
            old.version = subscription.version
            old.has_ended = False
            old.dead_ms = 0  # born_ms stays: messages got its bits while it was dead, too
        else:
            self._remove(old)
            self._add(group, subscription)

    def _add(self, group: str, subscription: Subscription) -> None:
        expression = subscription.expression
        if expression is None:
            return
        text, topic = subscription.data.sub_string, subscription.topic
        if not self._has_room(text) and not self._is_full:
            self._remove_dead()
        if not self._has_room(text):
            if not self._is_full:
                log.error(
                    "SQL expression refused, the filter data is full entries=%d characters=%d"
                    " group=%s topic=%s",
                    *(self._count, self._chars, group, topic),
                )
            self._is_full = True
            return
        self._insert(
            FilterData(
                topic,
                group,
                text,
                subscription.data.expression_type,
                expression,
                self.bloom.positions(f"{group}#{topic}"),
                max(self._clock.now_ms(), self._stored_ms),
                subscription.version,
            )
        )

    def _has_room(self, text: str) -> bool:
        return self._count < ENTRIES_MAX and self._chars + len(text) <= CHARS_MAX

    def _remove_dead(self) -> None:
        """Remove dead expressions, the oldest ends first, until a part of the table is free.

        Groups with a new name for each start would otherwise fill it for a day.
        """
        entries_max = ENTRIES_MAX * (100 - ROOM_PERCENT) // 100
        chars_max = CHARS_MAX * (100 - ROOM_PERCENT) // 100
        dead = (data for data in self._entries() if data.is_dead)
        for data in sorted(dead, key=lambda each: each.dead_ms):
            if self._count <= entries_max and self._chars <= chars_max:
                return
            self._remove(data)

    def _end(self, subscriptions: Iterable[FilterData]) -> None:
        for data in subscriptions:
            data.has_ended = True
            if not data.is_dead:
                data.dead_ms = max(self._clock.now_ms(), data.born_ms)
                self._changed = True

    def _insert(self, data: FilterData) -> None:
        self._by_group.setdefault(data.group, {})[data.topic] = data
        topic = self._topics.setdefault(data.topic, _Topic())
        topic.groups[data.group] = data
        topic.cost += data.cost
        topic.searches += data.searches
        self._count += 1
        self._chars += len(data.text)
        self._changed = True

    def _remove(self, data: FilterData) -> None:
        topics = self._by_group[data.group]
        del topics[data.topic]
        if not topics:
            del self._by_group[data.group]
        topic = self._topics[data.topic]
        del topic.groups[data.group]
        topic.cost -= data.cost
        topic.searches -= data.searches
        if not topic.groups:
            del self._topics[data.topic]
        self._count -= 1
        self._chars -= len(data.text)
        self._changed = True

    # --- the file -----------------------------------------------------------------------------

    def text_of(self, data: FilterData | None) -> str:
        """Return an expression of a group as tools show it."""
        return "null" if data is None else entry_text(data.stored(self.bloom.size_bits), depth=0)

    def load(self) -> None:
        """Read the file. Its subscriptions are dead until their first heartbeat.

        An entry that no heartbeat could have made, for instance because the file was edited, is
        ignored with a warning, and so is one whose bits are for bit maps of another size. The next
        heartbeat of its group registers the expression again.
        """
        try:
            topics = read_struct(self._file.load() or {}, _AnyFilters).filter_data_by_topic
        except (StoreError, FastJsonError) as problem:
            log.error(
                "filter data ignored, heartbeats register the expressions again path=%s: %s",
                *(self._file.path, problem),
            )
            return
        ignored: list[str] = []
        for topic, groups in topics.items():
            try:
                entries = read_struct(groups, _AnyTopic).group_filter_data
            except FastJsonError as problem:
                ignored.append(f"topic={topic[:128]}: {problem}")
                continue
            for group, entry in entries.items():
                try:
                    self._restore(topic, group, read_struct(entry, StoredFilter))
                except (ResponseError, FastJsonError) as problem:
                    reason = problem.remark if isinstance(problem, ResponseError) else problem
                    ignored.append(f"topic={topic[:128]} group={group[:256]}: {reason}")
        if ignored:
            for each in ignored[:_SHOWN_MAX]:
                log.warning("filter data ignored %s", each)
            log.warning(
                "filter data ignored, heartbeats register the expressions again path=%s ignored=%d"
                " loaded=%d",
                *(self._file.path, len(ignored), self._count),
            )
        self._changed = False

    def _restore(self, topic: str, group: str, data: StoredFilter) -> None:
        """Add an entry of the file.

        Raises:
            ResponseError: no heartbeat could have made it.
        """
        check_subscribed_topic(topic)
        check_group(group)
        if not self._has_room(data.expression):
            raise invalid(f"expected {ENTRIES_MAX} entries of {CHARS_MAX} characters at most")
        now_ms = self._clock.now_ms()
        for name, time_ms in (
            ("bornTime", data.born_time),
            ("deadTime", data.dead_time),
            ("clientVersion", data.client_version),
        ):
            if not 0 <= time_ms <= now_ms + _AHEAD_MS_MAX:
                raise invalid(f"met {name} {str(time_ms)[:40]}, expected a time up to now")
        positions = self.bloom.positions(f"{group}#{topic}")
        stored = data.bloom_filter_data or BloomData()
        if stored.bit_num != self.bloom.size_bits or tuple(stored.bit_pos) != positions:
            raise invalid(
                f"met bits for bit maps of {str(stored.bit_num)[:40]} bits, expected bits"
                f" {list(positions)} of {self.bloom.size_bits}"
            )
        if is_tag_kind(data.expression_type):
            raise invalid(f"met the expression type {data.expression_type!r}, expected SQL92")
        subscription = Subscription(
            SubscriptionData(
                topic=topic,
                sub_string=data.expression,
                expression_type=data.expression_type,
                sub_version=data.client_version,
            )
        )
        if subscription.expression is None:
            raise invalid(subscription.problem)
        entry = FilterData(
            topic,
            group,
            data.expression,
            data.expression_type,
            subscription.expression,
            positions,
            data.born_time,
            data.client_version,
        )
        entry.dead_ms = data.dead_time or max(now_ms - _DEAD_BEFORE_START_MS, data.born_time)
        self._insert(entry)

    def renew_births(self) -> None:
        """Let no bit map count that was computed before now, after the broker was killed.

        A group may have changed its expression since the file was written; the bits of both have
        the same positions.
        """
        now_ms = max(self._clock.now_ms(), self._stored_ms)
        for entry in self._entries():
            entry.born_ms = now_ms
            entry.dead_ms = max(entry.dead_ms, now_ms)
            self._changed = True

    async def persist(self) -> None:
        """Remove what has been dead for filterDataCleanTimeSpan; write the file after a change.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        await self._clean(Slices())
        if self._changed:
            self._changed = False
            save = partial(self._save, self._entries())
            try:
                await asyncio.get_running_loop().run_in_executor(None, save)
            except StoreError:
                self._changed = True
                raise

    def persist_now(self) -> None:
        """Write the file if anything has changed; after the event loop's work has ended.

        Raises:
            StoreError: the disk refused.
        """
        if self._changed:
            self._save(self._entries())
            self._changed = False

    async def _clean(self, slices: Slices) -> None:
        limit_ms = self._clock.now_ms() - self._settings().filter_data_clean_time_span_ms
        async for data in slices.each(self._entries()):
            is_over = data.is_dead and data.dead_ms <= limit_ms
            if is_over and self.find(data.topic, data.group) is data:
                self._remove(data)
        self._is_full = False

    def _entries(self) -> list[FilterData]:
        return [data for topics in self._by_group.values() for data in topics.values()]

    def _save(self, entries: list[FilterData]) -> None:
        """Write the file; from any thread."""
        content = StoredFilters()
        for data in entries:
            topic = content.filter_data_by_topic.setdefault(
                data.topic, StoredTopic(topic=data.topic)
            )
            topic.group_filter_data[data.group] = data.stored(self.bloom.size_bits)
        self._file.save(content)
