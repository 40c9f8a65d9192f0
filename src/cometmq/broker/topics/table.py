"""The topics of one broker: which there are, how they come into being, and the file they live in.

    topics.json := {"dataVersion": version, "topicConfigTable": {name: settings}}

Every change is on the disk before it is seen, and counts the table's version up; a change that
cannot be written is not made. What the file says of a topic wins over what the broker would make
of it at its start, so the broker's own topics can be changed for good.

Source: TopicConfigManager and TopicValidator, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from cometmq.broker.checks import FAQ
from cometmq.broker.config import BrokerSettings
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
    SYSTEM_TOPICS,
    TEMPLATE_TOPIC,
    Perm,
    TopicConfig,
    check_topic_name,
    is_system_topic,
    reply_topic,
)
from cometmq.protocol.bodies import DataVersion, TopicConfigSerializeWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

DELAY_QUEUES = 18
BENCHMARK_QUEUES = 1024
CLUSTER_QUEUES = 16
QUEUES_MAX = 65_535
INTERNAL_NAME_CHARS_MAX = 255
"""A topic of the broker's own making names a directory, and file systems allow no more."""

_INTERNAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_READ_WRITE = Perm.READ | Perm.WRITE


class TopicTable:
    """All topics of one broker.

    Args:
        settings: gives the broker's settings as they are now.
        file: topics.json.
        clock: stamps the table's version.
    """

    def __init__(
        self, settings: Callable[[], BrokerSettings], file: JsonFile, *, clock: Clock
    ) -> None:
        self._settings = settings
        self._file = file
        self._clock = clock
        self._table: dict[str, TopicConfig] = {}
        self._system: set[str] = set()
        self.version: DataVersion = DataVersion(timestamp=clock.now_ms())
        """Version of the table."""
        self.on_change: Callable[[], None] | None = None
        """Called after every change, for whoever tells the name servers."""

    # --- reading --------------------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic's settings, or None."""
        return self._table.get(name)

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

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> Mapping[str, TopicConfig]:
        """Return name → settings of every topic; not to be changed."""
        return self._table

    def is_system(self, name: str) -> bool:
        """Return whether a topic is one of the broker's own."""
        return name in self._system or is_system_topic(name)

    def system_names(self) -> list[str]:
        """Return the names of all topics that are the broker's own, whether they exist or not."""
        mine = {name for name in self._table if self.is_system(name)}
        return sorted(mine | self._system | SYSTEM_TOPICS)

    # --- start ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file and add the broker's own topics that are missing.

        Raises:
            StoreError: the file cannot be read, or cannot be written.
        """
        content = self._file.load()
        if content is not None:
            found = _read(content, self._file)
            self._table, self.version = found.topic_config_table, found.data_version
        self.add_system_topics()

    def add_system_topics(self) -> None:
        """Add the broker's own topics that are missing, by the settings as they are now.

        Raises:
            StoreError: the file cannot be written.
        """
        own = _system_topics(self._settings())
        self._system |= {config.topic_name for config in own}
        missing = [config for config in own if config.topic_name not in self._table]
        if missing:
            self._change({config.topic_name: config for config in missing})

    # --- creation -------------------------------------------------------------------------------

    def create_on_send(
        self, name: str, template: str, queues: int, *, unit_mode: bool, producer: str
    ) -> TopicConfig | None:
        """Create the unknown topic of a send, if its template allows that.

        Args:
            name: of the topic to be.
            template: the topic to make it from, mostly ``TBW102``.
            queues: as many as the producer asks for; at most the template's, at least 0.
            unit_mode: whether the producer works in units.
            producer: who asks, for the log.

        Returns:
            The topic's settings, or None when the template does not allow new topics.

        Raises:
            InvalidNameError: no topic may have this name.
            StoreError: the file cannot be written; there is no topic.
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
        self._change({name: config})
        log.info("topic created by a send topic=%s queues=%d producer=%s", name, count, producer)
        return config

    def _allows_creation(self, template: TopicConfig) -> bool:
        if template.topic_name == TEMPLATE_TOPIC and not self._settings().auto_create_topic_enable:
            return False
        return bool(template.perm & Perm.INHERIT)

    def create_internal(
        self, name: str, queues: int, *, sys_flag: int = 0, perm: int = _READ_WRITE
    ) -> TopicConfig:
        """Create a topic of the broker's own making (retry, dead letters, …), or return it.

        Raises:
            InvalidNameError: the name has characters that no topic may have, or more than 255.
            StoreError: the file cannot be written; there is no topic.
        """
        known = self._table.get(name)
        if known is not None:
            return known
        if len(name) > INTERNAL_NAME_CHARS_MAX or not _INTERNAL_NAME.fullmatch(name):
            raise InvalidNameError(
                f"topic {name[:80]!r} of {len(name)} characters: expected at most"
                f" {INTERNAL_NAME_CHARS_MAX} letters, digits, %, |, _ and -"
            )
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_sys_flag=sys_flag,
        )
        self._change({name: config})
        return config

    # --- change ---------------------------------------------------------------------------------

    def put(self, configs: Iterable[TopicConfig]) -> bool:
        """Create or change topics, all of them or none; return whether anything changed.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        changes = {c.topic_name: c for c in configs if self._table.get(c.topic_name) != c}
        if changes:
            self._change(changes)
        return bool(changes)

    def delete(self, name: str) -> bool:
        """Forget a topic; return whether there was one.

        Raises:
            StoreError: the file cannot be written; the topic is still there.
        """
        if name not in self._table:
            return False
        self._change({}, without=name)
        return True

    def order(self, names: Iterable[str]) -> None:
        """Mark topics as ordered, which name servers keep a list of.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        found = [self._table[name] for name in names if name in self._table]
        self.put([msgspec.structs.replace(config, order=True) for config in found])

    def touch(self) -> None:
        """Count the version up, so that the name servers take the whole table again.

        Raises:
            StoreError: the file cannot be written.
        """
        self._change({})

    def _change(self, changes: Mapping[str, TopicConfig], *, without: str | None = None) -> None:
        table = {**self._table, **changes}
        if without is not None:
            del table[without]
        version = self.version.next(self._clock.now_ms())
        self._file.save({"dataVersion": version, "topicConfigTable": table})
        self._table, self.version = table, version
        if self.on_change is not None:
            self.on_change()


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
    ]
    if settings.auto_create_topic_enable:
        topics.append(own(TEMPLATE_TOPIC, settings.default_topic_queue_nums, shared))
    if settings.trace_topic_enable:
        topics.append(own(settings.msg_trace_topic_name, 1))
    return topics


def _read(content: Mapping[str, Any], file: JsonFile) -> TopicConfigSerializeWrapper:
    try:
        found = read_struct(content, TopicConfigSerializeWrapper)
    except FastJsonError as problem:
        raise StoreError(f"{file.path} has no table of topics: {problem}") from problem
    for name, config in found.topic_config_table.items():
        config.topic_name = name
    return found
