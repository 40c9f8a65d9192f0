"""The topics of one broker: the table, its file, and the creation of topics.

    topics.json := {"dataVersion": version, "topicConfigTable": {name: settings}}

A change is visible once it is on disk, see `StoredTable`, and counts the version of the table up.
The file has precedence over what the broker would create at its start, so changes of system
topics last.

Source: TopicConfigManager and TopicValidator, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.broker.creations import TOPIC, CreationLimits
from cometmq.broker.prerequisites import CreationRequiredError, PrerequisiteError
from cometmq.broker.stored_table import Change, ConfigTable, create
from cometmq.model.errors import InvalidNameError, ResponseError, StoreError
from cometmq.model.flags import TopicSysFlag
from cometmq.model.topic import (
    BENCHMARK_TOPIC,
    DELAY_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SELF_TEST_TOPIC,
    SYNC_BROKER_MEMBER_PREFIX,
    SYSTEM_TOPICS,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    Perm,
    TopicConfig,
    check_topic_name,
    is_system_topic,
    reply_topic,
)
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.codes import FAQ, ResponseCode
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.remoting.slices import Slices
from cometmq.store import MessageStore
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.remoting import Request

log = logging.getLogger(__name__)

DELAY_QUEUES = 18
BENCHMARK_QUEUES = 1024
CLUSTER_QUEUES = 16
INTERNAL_NAME_CHARS_MAX = 255
"""The name of a topic that the broker creates is also that of a directory."""

NAMES_LOGGED_MAX = 100

_SECTION = "topicConfigTable"
_INTERNAL_NAME = re.compile(rf"[%|a-zA-Z0-9_+-]{{1,{INTERNAL_NAME_CHARS_MAX}}}")
_READ_WRITE = Perm.READ | Perm.WRITE


class _Loss(msgspec.Struct, rename="camel"):
    """The content of topics-lost.json."""

    log_end: int
    """The log offset behind the messages that were stored when the topics were lost."""


class Gap(Protocol):
    """The topics that a slave has not copied yet, as far as the table knows of them."""

    copying: asyncio.Lock
    """Held while topics are copied, and while missing topics are created."""
    epoch: int
    """The epoch of the master whose table a slave copies, or of this master."""
    before_fill: Callable[[], Awaitable[None]]
    """Creates the topics whose settings are in the log, before the others are created."""

    def restore(self, name: str, queue_id: int, log_offset: int) -> bool:
        """Create the topic of a message that waits; return whether it is being created."""

    async def copied(self, log_end: int) -> None:
        """Note that the topics of the master were copied."""


class TopicTable(ConfigTable[TopicConfig]):
    """All topics of one broker.

    Args:
        settings: returns the current settings of the broker.
        file: topics.json.
        clock: stamps the table's version.
        creations: limits what requests create.
    """

    def __init__(
        self,
        settings: Callable[[], BrokerSettings],
        file: JsonFile,
        *,
        clock: Clock,
        creations: CreationLimits | None = None,
    ) -> None:
        super().__init__(file, _SECTION, "topic_name", clock=clock)
        self._settings = settings
        self.creations = creations or CreationLimits(settings)
        self._store: MessageStore | None = None
        self._loss_file = file.beside("topics-lost.json")
        self.was_lost = False
        """Whether a start found queues, but no file, and messages from then are still stored: they
        may have topics that are not known."""
        self._unknown = FailureLog(
            log,
            fails="message stored in a topic without settings: create the topic again",
            works="topic has settings again",
            name="topic",
        )
        self._system: set[str] = set()
        self.gap: Gap | None = None
        """Creates topics that were not copied before an election; None without a controller."""
        self._leaving: dict[str, asyncio.Event] = {}
        """Topics that are being deleted, of which files still exist; set when they are gone."""

    # --- reading --------------------------------------------------------------------------------

    def require(self, name: str) -> TopicConfig:
        """Return the settings of a topic that a request names.

        Raises:
            ResponseError: 17, there is no such topic.
        """
        topic = self._table.get(name)
        if topic is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name[:300]}] not exist, apply first please! {FAQ}",
            )
        return topic

    def queue_for(self, name: str, queue_id: int, log_offset: int) -> int | None:
        """Return the queue of a message that waited for its delivery: mostly its target queue.

        If the topic has fewer queues by now, it is another one, which routes contain. A topic
        without settings was deleted only if it has no queues either: else its settings were lost,
        and consumers find the message when it is created again.

        Args:
            name, queue_id: its target queue.
            log_offset: where it waited in the log.

        Returns:
            None if the topic was deleted.
        """
        config = self._table.get(name)
        if config is None:
            if self.gap is not None and self.gap.restore(name, queue_id, log_offset):
                return queue_id
            if not self.was_lost and not (self._store and self._store.has_queues(name)):
                return None
            self._unknown.failed(name, StoreError(f"{self._stored.file.path} does not name it"))
            return queue_id
        self._unknown.succeeded(name)
        if queue_id < max(config.read_queue_nums, config.write_queue_nums):
            return queue_id
        return queue_id % max(config.write_queue_nums, 1)

    def is_system(self, name: str) -> bool:
        """Return whether a topic is a system topic."""
        return name in self._system or is_system_topic(name)

    async def system_names(self) -> list[str]:
        """Return the names of all system topics, whether they exist or not."""
        names = Slices().each(list(self._table))
        mine = {name async for name in names if self.is_system(name)}
        return sorted(mine | self._system | SYSTEM_TOPICS)

    # --- start ----------------------------------------------------------------------------------

    def load(
        self, store: MessageStore | None = None, of_features: Sequence[TopicConfig] = ()
    ) -> None:
        """Read the file and add the system topics that are missing.

        Args:
            store: the store; None for one without queues.
            of_features: further system topics.

        Raises:
            StoreError: the file cannot be read, or cannot be written.
        """
        self._store = store = store or self._store
        is_found = self._load(
            TopicConfigSerializeWrapper, lambda found: {_SECTION: found.topic_config_table}
        )
        if compacted := [name for name, each in self._table.items() if _is_compacted(each)]:
            log.warning(
                "topics that RocketMQ compacts are not compacted here, and lose messages that are"
                " older than fileReservedTime count=%d topics=%s",
                *(len(compacted), ",".join(sorted(compacted)[:NAMES_LOGGED_MAX])),
            )
        own = [*_system_topics(self._settings()), *of_features]
        self._system |= {config.topic_name for config in own}
        if store and not is_found and (stored := store.topics()):
            self._loss_file.save(_Loss(log_end=store.written_to))
            names = sorted(name for name in stored if not self.is_system(name))
            log.error(
                "no topic is known, though the store has queues: there is no file %s; its topics"
                " must be created again count=%d topics=%s",
                *(self._stored.file.path, len(names), ",".join(names[:NAMES_LOGGED_MAX])),
            )
        self.was_lost = (store.min_log_offset if store else 0) < self._loss_end()
        missing = [config for config in own if config.topic_name not in self._table]
        if missing:
            self.put_now(missing)

    def _loss_end(self) -> int:
        """Return the end of the log when the topics were lost last; 0 if they never were.

        The file is there before topics.json is written again: the next start finds that one, and
        without this mark it would take all other topics for deleted.
        """
        content = self._loss_file.load()
        try:
            return 0 if content is None else read_struct(content, _Loss).log_end
        except FastJsonError as problem:
            raise StoreError(f"{self._loss_file.path}: {problem}") from problem

    # --- creation -------------------------------------------------------------------------------

    def require_for_send(
        self, name: str, template: str, queues: int, *, unit_mode: bool, producer: str
    ) -> TopicConfig | None:
        """Return the topic of a send.

        Args:
            name: of the topic.
            template: the topic to create it from, mostly ``TBW102``.
            queues: the number that the producer requests; at most the template's, at least 0.
            unit_mode: whether the producer works in units.
            producer: its address, for the log.

        Returns:
            None if it does not exist and the template does not allow its creation.

        Raises:
            PrerequisiteError: it does not exist, and may be created.
            InvalidNameError: no topic may have this name.
        """
        known = self._table.get(name)
        if known is not None:
            return known
        source = self._table.get(template)
        if source is None or not self._allows_creation(source):
            log.warning(
                "topic not created: template missing or not inheritable topic=%s template=%s",
                name,
                template,
            )
            return None
        check_topic_name(name)
        count = max(0, min(queues, source.write_queue_nums))
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=source.perm & ~Perm.INHERIT,
            topic_filter_type=source.topic_filter_type,
            topic_sys_flag=_unit_flag(name) if unit_mode else source.topic_sys_flag,
        )
        raise CreationRequiredError(partial(self._create_on_send, config, producer))

    async def _create_on_send(
        self, config: TopicConfig, producer: str, request: Request | None
    ) -> None:
        await self._create_limited(config, request)
        if self._table.get(config.topic_name) is config:
            log.info(
                "topic created by a send topic=%s queues=%d producer=%s",
                *(config.topic_name, config.write_queue_nums, producer),
            )

    async def _create_limited(self, config: TopicConfig, request: Request | None) -> None:
        """Create a topic unless it exists by now.

        Raises:
            ResponseError: the request may not create it.
        """
        name = config.topic_name
        if name not in self._table:
            with self.creations.creating(TOPIC, name, len(self._table), request):
                await self.create_all([config])

    def _allows_creation(self, template: TopicConfig) -> bool:
        if template.topic_name == TEMPLATE_TOPIC and not self._settings().auto_create_topic_enable:
            return False
        return bool(template.perm & Perm.INHERIT)

    def require_internal(
        self, name: str, queues: int, *, sys_flag: int = 0, by_send: bool = False
    ) -> TopicConfig:
        """Return a topic that the broker creates itself: retry, dead letters.

        Args:
            name, queues, sys_flag: its settings.
            by_send: whether a send names it, so that it counts for the limits of creation; else
                it belongs to a group that exists.

        Raises:
            PrerequisiteError: it does not exist yet.
            InvalidNameError: the name has characters that no topic may have, or more than 255.
        """
        known = self._table.get(name)
        if known is not None:
            return known
        config = internal_topic(name, queues, sys_flag=sys_flag)
        if by_send:
            raise CreationRequiredError(partial(self._create_limited, config))
        raise PrerequisiteError(lambda: self.create_all([config]))

    async def create_all(self, configs: Iterable[TopicConfig]) -> None:
        """Create those topics that do not exist yet, with one write.

        Raises:
            StoreError: the file cannot be written; nothing was created.
        """
        missing = [config for config in configs if config.topic_name not in self._table]
        if missing:
            await self._until_gone(config.topic_name for config in missing)
            await self._stored.change(
                [create(_SECTION, config.topic_name, config) for config in missing]
            )

    # --- change ---------------------------------------------------------------------------------

    async def change(
        self, changes: Mapping[str, Callable[[TopicConfig | None], TopicConfig]]
    ) -> bool:
        """Change topics by functions of their present settings; return whether any changed.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
            ResponseError: what a function raises; nothing was changed.
        """
        await self._until_gone(changes)
        return await super().change(changes)

    async def delete(self, name: str, forget: Callable[[str], Awaitable[None]]) -> bool:
        """Delete a topic; return whether there was one.

        Args:
            name: of the topic.
            forget: removes it from other parts; until then it is not created again.

        Raises:
            StoreError: the file cannot be written; the topic is still there.
        """
        await self._until_gone([name])
        gone = self._leaving[name] = asyncio.Event()
        found: list[TopicConfig | None] = []
        try:
            take = Change(_SECTION, name, found.append)  # which returns None: it is removed
            await self._stored.change([take])
            await forget(name)
            self.creations.forget(TOPIC, name)
        finally:
            del self._leaving[name]
            gone.set()
        return found[-1] is not None

    async def _until_gone(self, names: Iterable[str]) -> None:
        """Wait until none of the topics is being deleted."""
        wanted = set(names)
        while leaving := wanted & self._leaving.keys():
            await self._leaving[leaving.pop()].wait()

    async def order(self, names: Iterable[str]) -> None:
        """Mark topics as ordered, which name servers keep a list of.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        wanted = [name for name in names if name in self._table and not self._table[name].order]
        if wanted:
            await self._stored.change(Change(_SECTION, name, _ordered) for name in wanted)

    async def copy(self, master: TopicConfigSerializeWrapper, log_end: int) -> bool:
        """Take over the topics of the master of this slave; return whether anything changed.

        System topics stay if the master does not have them: this broker may become a master.

        Args:
            master: the table of the master.
            log_end: an end of the log from before that table was requested.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        topics = master.topic_config_table
        sections, version = {_SECTION: topics}, master.data_version
        if self.gap is None:
            return await self._replace(version, sections, keeps=self.is_system)
        async with self.gap.copying:
            if self.is_early(version):
                return False
            changed = await self._replace(version, sections, keeps=self.is_system)
            await self.gap.copied(log_end)
            return changed

    def is_early(self, version: DataVersion) -> bool:
        """Return whether a table lacks the epoch of the master that this broker has, or is.

        The master may not have created the topics that it has not copied, or this broker has been
        elected meanwhile. The epoch in the table here does not count: it is larger if the
        controllers have lost their data and count from 1 again.
        """
        return self.gap is not None and version.state_version < self.gap.epoch

    def file_beside(self, name: str) -> JsonFile:
        """Return another file in the directory of the table's file."""
        return self._stored.file.beside(name)

    async def touch(self) -> None:
        """Count the version up, so that the name servers take the whole table again.

        Raises:
            StoreError: the file cannot be written.
        """
        await self._stored.change([])

    async def begin_epoch(self, epoch: int) -> None:
        """Put the epoch of the master that this broker becomes into the version.

        Name servers refuse a master whose epoch is older than that of the one they know.

        Raises:
            StoreError: the file cannot be written.
        """
        await self._stored.change([], state_version=epoch)


def _is_compacted(config: TopicConfig) -> bool:
    return config.attributes.get("cleanup.policy") == "COMPACTION"


def _ordered(config: TopicConfig | None) -> TopicConfig | None:
    return None if config is None else msgspec.structs.replace(config, order=True)


def is_internal_name(name: str) -> bool:
    """Return whether a topic that the broker creates itself may have a name."""
    return _INTERNAL_NAME.fullmatch(name) is not None


def internal_topic(
    name: str, queues: int, *, sys_flag: int = 0, order: bool = False
) -> TopicConfig:
    """Return the settings of a topic that the broker creates itself.

    Raises:
        InvalidNameError: the name has characters that no topic may have, or more than 255.
    """
    if not is_internal_name(name):
        raise InvalidNameError(
            f"topic {name[:80]!r} of {len(name)} characters: expected at most"
            f" {INTERNAL_NAME_CHARS_MAX} letters, digits, %, |, _, + and -"
        )
    return TopicConfig(
        topic_name=name,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=_READ_WRITE,
        topic_sys_flag=sys_flag,
        order=order,
    )


def _unit_flag(name: str) -> int:
    return int(TopicSysFlag.UNIT_SUB if name.startswith(RETRY_PREFIX) else TopicSysFlag.UNIT)


def _system_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """The topics that a broker has from its start."""

    def own(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
        return TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
        )

    cluster, broker = settings.broker_cluster_name, settings.broker_name
    shared = _READ_WRITE | Perm.INHERIT
    topics = [
        own(SELF_TEST_TOPIC, 1),
        own(OFFSET_MOVED_TOPIC, 1),
        own(reply_topic(cluster), 1),
        own(BENCHMARK_TOPIC, BENCHMARK_QUEUES),
        own(cluster, CLUSTER_QUEUES, shared if settings.cluster_topic_enable else Perm.INHERIT),
        own(broker, 1, shared if settings.broker_topic_enable else Perm.INHERIT),
        own(DELAY_TOPIC, DELAY_QUEUES),
        own(HALF_TOPIC, 1),
        own(OP_HALF_TOPIC, 1),
        own(TIMER_TOPIC, 1),
    ]
    if settings.auto_create_topic_enable:
        topics.append(own(TEMPLATE_TOPIC, settings.default_topic_queue_nums, shared))
    if settings.trace_topic_enable:
        topics.append(own(settings.msg_trace_topic_name, 1))
    if settings.enable_slave_acting_master:  # its route shows slaves of RocketMQ who is there
        topics.append(own(f"{SYNC_BROKER_MEMBER_PREFIX}{broker}", 1))
    return topics
