"""The mappings of the static topics of one broker, and their file.

    topicQueueMapping.json := {"dataVersion": version, "topicQueueMappingInfoMap": {name: part}}

RocketMQ calls the member so, too, although it holds the details. The version is that of this file;
name servers compare that of topics.json. Its `stateVersion` is the number of changes in the log,
see `mapping_log.py`, that the table has.

Source: TopicQueueMappingManager, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from cometmq.broker.stored_table import Change, ConfigTable, put, remove
from cometmq.model.errors import CometError, StoreError
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.route import (
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
)
from cometmq.protocol.bodies.topic import TopicQueueMappingSerializeWrapper
from cometmq.protocol.logical_queues import InvalidMappingError, check_items, info_of
from cometmq.remoting.slices import Slices

if TYPE_CHECKING:
    from cometmq.broker.topics.table import TopicTable
    from cometmq.store.config_files import JsonFile
    from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

FILE: Final = "topicQueueMapping"
_SECTION = "topicQueueMappingInfoMap"
NAMES_LOGGED_MAX = 100

Mappings = Mapping[str, TopicQueueMappingDetail]


class Log(Protocol):
    """The log of changes, as far as the table knows of it."""

    async def append(self, detail: TopicQueueMappingDetail, config: TopicConfig) -> tuple[int, int]:
        """Store a change; return the number of changes, and the log offset behind it."""


class StaticTopicTable(ConfigTable[TopicQueueMappingDetail]):
    """The parts of static topics that this broker has, by topic.

    Args:
        file: topicQueueMapping.json.
        broker_name: of this broker.
        clock: stamps the table's version.
    """

    def __init__(self, file: JsonFile, broker_name: str, *, clock: Clock) -> None:
        super().__init__(file, _SECTION, "topic", clock=clock)
        self.broker_name = broker_name
        self.log: Callable[[], Log] | None = None
        """Returns what stores changes ahead of the file; None in programs without a log."""
        self.changes_known = 0
        """The number of changes in the log that the table has."""
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[str], object]] = []
        self._infos: dict[str, TopicQueueMappingInfo] = {}
        """What name servers get, by topic: kept until the mapping changes."""
        self._written: dict[str, frozenset[int]] = {}
        """The physical queues of the led queues of a topic, likewise."""
        self.mappings = self._table
        """The parts by topic, not to be changed: fast paths look topics up in a dict."""

    def on_change(self, listener: Callable[[str], object]) -> None:
        """Call a function with the name of each topic whose mapping has changed."""
        self._listeners.append(listener)

    def info(self, topic: str) -> TopicQueueMappingInfo | None:
        """Return what name servers get of a static topic; None for another topic."""
        found = self._infos.get(topic)
        if found is None and (detail := self._table.get(topic)) is not None:
            found = self._infos[topic] = info_of(detail)
        return found

    def is_ended(self, topic: str, physical_queue: int) -> bool:
        """Return whether no logical queue of a static topic is stored in a physical queue now."""
        written = self._written.get(topic)
        if written is None:
            info = self.info(topic)
            if info is None:
                return False
            written = self._written[topic] = frozenset(info.curr_id_map.values())
        return physical_queue not in written

    # --- start ------------------------------------------------------------------------------------

    def load(self, topics: TopicTable) -> None:
        """Read the file, behind that of the topics.

        A crash between the two files leaves a mapping without its topic, or a topic without the
        newest physical queue of its mapping. The first is dropped, the second is added. If the file
        of the topics was lost, they are made from their mappings.

        Raises:
            StoreError: a file cannot be read or written, or a mapping is that of another broker.
        """
        self._load(
            TopicQueueMappingSerializeWrapper,
            lambda found: {_SECTION: found.topic_queue_mapping_info_map},
        )
        self.changes_known = self.version.state_version
        orphans = []
        larger: list[TopicConfig] = []
        for topic, detail in self._table.items():
            self._check(topic, detail)
            config = topics.get(topic)
            needed = queues_needed(detail, self.broker_name)
            if config is None and not topics.was_lost:
                orphans.append(topic)
            elif config is None:
                none = TopicConfig(topic_name=topic, read_queue_nums=0, write_queue_nums=0)
                larger.append(with_queues(none, needed))
            elif needed > min(config.read_queue_nums, config.write_queue_nums):
                larger.append(with_queues(config, needed))
        if orphans:
            log.warning(
                "mappings without a topic are dropped count=%d topics=%s",
                *(len(orphans), ",".join(sorted(orphans)[:NAMES_LOGGED_MAX])),
            )
            self._stored.change_now(remove(_SECTION, topic) for topic in orphans)
        if larger:
            topics.put_now(larger)

    def _check(self, topic: str, detail: TopicQueueMappingDetail) -> None:
        path = self._stored.file.path
        if detail.bname != self.broker_name:
            raise StoreError(
                f"{path} has the mapping of topic {topic} of broker {detail.bname}, expected"
                f" {self.broker_name}: start the broker with the brokerName of this store, or"
                " remove a file that was copied from another broker"
            )
        try:
            for queue_id, items in (detail.hosted_queues or {}).items():
                check_items(queue_id, items)
        except InvalidMappingError as problem:
            raise StoreError(f"{path} has a bad mapping of topic {topic}: {problem}") from problem

    # --- change -----------------------------------------------------------------------------------

    async def replace(self, detail: TopicQueueMappingDetail, config: TopicConfig) -> int:
        """Replace the part of a topic in the log and in the table; returns when it is on disk.

        The log comes first: every copy of it has the change ahead of the messages that are stored
        under it. If the file cannot be written then, the next start makes the change.

        Args:
            detail: the part.
            config: the settings of the topic.

        Returns:
            The log offset behind the change; 0 without a log.

        Raises:
            StoreError, ResponseError: the log refuses, and nothing was changed; or the file cannot
                be written.
        """
        async with self._changing:
            known, log_end = self.changes_known, 0
            if self.log is not None:
                known, log_end = await self.log().append(detail, config)
            await self._stored.change([put(_SECTION, detail.topic, detail)], state_version=known)
            self.changes_known = known
        self._notify([detail.topic])
        return log_end

    async def take(self, detail: TopicQueueMappingDetail) -> None:
        """Replace the part of a topic by one that every other master would find, too.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        async with self._changing:
            is_changed = await self.put([detail])
        if is_changed:
            self._notify([detail.topic])

    def lacks(self, detail: TopicQueueMappingDetail) -> bool:
        """Return whether the table lacks a change of the log.

        A part that is newer than the change stays: it was copied, or taken from other brokers.
        """
        present = self._table.get(detail.topic)
        if present is None:
            return not _is_deletion(detail)
        return present != detail and present.epoch <= detail.epoch

    async def make(self, details: Iterable[TopicQueueMappingDetail], known: int) -> None:
        """Make changes of the log.

        Args:
            details: the newest part of each topic; one without queues says that it was deleted.
            known: the number of changes that the table has then.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        async with self._changing:
            wanted = {
                detail.topic: None if _is_deletion(detail) else detail
                for detail in details
                if self.lacks(detail)
            }
            changes = [put(_SECTION, topic, detail) for topic, detail in wanted.items()]
            await self._stored.change(changes, state_version=known)
            self.changes_known = known
        self._notify(wanted)

    async def forget(self, topic: str) -> None:
        """Remove the part of a topic that was deleted, if there is one.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        async with self._changing:
            known = self._table.get(topic)
            if known is None:
                return
            count = await self._log_deletion(known)
            await self._stored.change([remove(_SECTION, topic)], state_version=count)
            self.changes_known = count
        self._notify([topic])

    async def _log_deletion(self, known: TopicQueueMappingDetail) -> int:
        """Store a deletion in the log; return the number of changes."""
        if self.log is None:
            return self.changes_known
        gone = msgspec.structs.replace(known, total_queues=0, hosted_queues={})
        try:
            count, _ = await self.log().append(gone, TopicConfig(topic_name=known.topic))
        except CometError as problem:  # a full disk must not keep the topic
            log.warning(
                "slaves copy a deletion some seconds late topic=%s: %s", *(known.topic, problem)
            )
            return self.changes_known
        return count

    async def copy(
        self,
        mappings: dict[str, TopicQueueMappingDetail],
        version: DataVersion | None,
        changes_known: int,
    ) -> bool:
        """Take over the parts of the master of this slave; return whether anything changed.

        Args:
            mappings: the parts of the master, by topic.
            version: of its table; None if it has none.
            changes_known: the number of changes in the log here from before they were requested,
                which counts if the master does not count them.

        Raises:
            StoreError: the file cannot be written, or a part is that of another broker; nothing was
                changed.
        """
        if version is None or version == self.version:
            return False
        slices = Slices()
        async for topic, detail in slices.each(mappings.items()):
            self._check(topic, detail)
        before = dict(self._table)
        async with self._changing:
            if not await self._replace(version, {_SECTION: mappings}, keeps=lambda _: False):
                return False
            self.changes_known = version.state_version or changes_known
        async for name in slices.each(list(before.keys() | self._table.keys())):
            if before.get(name) != self._table.get(name):
                self._notify([name])
        return True

    async def cut(
        self,
        known: TopicQueueMappingDetail,
        lists: Mapping[int, list[LogicQueueMappingItem]],
    ) -> bool:
        """Replace lists of items by shorter ones; an empty one removes its queue from the part.

        Args:
            known: the part that has the lists.
            lists: the items that stay, by logical queue.

        Returns:
            False if the part has changed meanwhile; then nothing was changed.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        hosted = {**(known.hosted_queues or {}), **lists}
        new = msgspec.structs.replace(
            known, hosted_queues={queue_id: items for queue_id, items in hosted.items() if items}
        )

        def shorter(present: TopicQueueMappingDetail | None) -> TopicQueueMappingDetail | None:
            return new if present is known else present

        async with self._changing:
            await self._stored.change([Change(_SECTION, known.topic, shorter)])
        if self._table.get(known.topic) is not new:
            return False
        self._notify([known.topic])
        return True

    def _notify(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._infos.pop(topic, None)
            self._written.pop(topic, None)
            for listener in self._listeners:
                try:
                    listener(topic)
                except Exception:
                    log.exception("a change of a mapping could not be followed topic=%s", topic)


def _is_deletion(detail: TopicQueueMappingDetail) -> bool:
    return detail.total_queues == 0


def items_of(detail: TopicQueueMappingDetail, queue_id: int) -> list[LogicQueueMappingItem]:
    """Return the items of a logical queue that a part has; none for another queue."""
    return (detail.hosted_queues or {}).get(queue_id, [])


def queues_needed(detail: TopicQueueMappingDetail, broker_name: str) -> int:
    """Return the number of physical queues that a broker needs for its items."""
    return 1 + max(
        (
            item.queue_id
            for items in (detail.hosted_queues or {}).values()
            for item in items
            if item.bname == broker_name
        ),
        default=-1,
    )


def with_queues(config: TopicConfig, needed: int) -> TopicConfig:
    """Return the settings of a topic with at least so many physical queues."""
    return msgspec.structs.replace(
        config,
        read_queue_nums=max(config.read_queue_nums, needed),
        write_queue_nums=max(config.write_queue_nums, needed),
    )
