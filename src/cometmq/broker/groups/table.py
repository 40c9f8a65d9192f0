"""The consumer groups of one broker: their settings, how they come into being, and their file.

    subscriptionGroup.json := {"dataVersion": version, "forbiddenTable": {group: {topic: bits}},
                               "subscriptionGroupTable": {name: settings}}

An unknown group is made at its first use, unless the broker is set not to; the groups that tools
use are there from the start. Bit 2 of a forbidden entry keeps a group from reading a topic. Every
change is on the disk before it is seen; a change that cannot be written is not made.

Source: SubscriptionGroupManager, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cometmq.broker.checks import FAQ, check_group
from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import InvalidNameError, ResponseError, StoreError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies import DataVersion, SubscriptionGroupWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

PREDEFINED_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Groups that every broker has."""

READ_BIT = 1 << 2
"""The bit of a forbidden entry that stands for reading."""

Forbidden = dict[str, dict[str, int]]


class GroupTable:
    """All consumer groups of one broker.

    Args:
        settings: gives the broker's settings as they are now.
        file: subscriptionGroup.json.
        clock: stamps the table's version.
    """

    def __init__(
        self, settings: Callable[[], BrokerSettings], file: JsonFile, *, clock: Clock
    ) -> None:
        self._settings = settings
        self._file = file
        self._clock = clock
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: Forbidden = {}
        self.version: DataVersion = DataVersion(timestamp=clock.now_ms())
        """Version of the table."""

    # --- reading --------------------------------------------------------------------------------

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings, or None; makes nothing."""
        return self._table.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> Mapping[str, SubscriptionGroupConfig]:
        """Return name → settings of every group; not to be changed."""
        return self._table

    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Return group → topic → bits of what is forbidden; not to be changed."""
        return self._forbidden

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Return whether a group may not read a topic."""
        if not self._forbidden:
            return False
        return bool(self._forbidden.get(group, {}).get(topic, 0) & READ_BIT)

    # --- start ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file and add the predefined groups that are missing.

        Raises:
            StoreError: the file cannot be read, or cannot be written.
        """
        content = self._file.load()
        if content is not None:
            found = _read(content, self._file)
            self._table, self.version = found.subscription_group_table, found.data_version
            self._forbidden = found.forbidden_table or {}
        missing = [name for name in PREDEFINED_GROUPS if name not in self._table]
        if missing:
            self._change({name: SubscriptionGroupConfig(group_name=name) for name in missing})

    # --- creation and change --------------------------------------------------------------------

    def get_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings, made now where the broker is set to do so.

        Returns:
            None when there is no such group and none is made, for the broker's settings or for
            the name, which must be legal.

        Raises:
            StoreError: the file cannot be written; there is no group.
        """
        known = self._table.get(name)
        if known is not None:
            return known
        if not self._may_create(name):
            return None
        config = SubscriptionGroupConfig(group_name=name)
        self._change({name: config})
        log.info("group created on first use group=%s", name)
        return config

    def require(
        self, name: str, remark: str = "subscription group not exist, {} "
    ) -> SubscriptionGroupConfig:
        """Return the settings of a group that a request names; create it if that is allowed.

        Args:
            name: from the request.
            remark: the response's remark if there is no such group; ``{}`` stands for the name.

        Raises:
            ResponseError: 26, there is no such group; 29, its name is illegal.
            StoreError: the file cannot be written; there is no group.
        """
        group = self._table.get(name)
        if group is None:
            check_group(name)
            group = self.get_or_create(name)
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark.replace("{}", name) + FAQ
            )
        return group

    def _may_create(self, name: str) -> bool:
        settings = self._settings()
        is_system = name.startswith(SYSTEM_GROUP_PREFIX) and settings.enable_create_sys_group
        if not (is_system or settings.auto_create_subscription_group):
            return False
        try:
            check_group_name(name)
        except InvalidNameError:
            return False
        return True

    def put(self, configs: Iterable[SubscriptionGroupConfig]) -> bool:
        """Create or change groups, all of them or none; return whether anything changed.

        Raises:
            InvalidNameError: a group's name is illegal; nothing was changed.
            StoreError: the file cannot be written; nothing was changed.
        """
        changes = {c.group_name: c for c in configs if self._table.get(c.group_name) != c}
        for name in changes:
            check_group_name(name)
        if changes:
            self._change(changes)
        return bool(changes)

    def delete(self, name: str) -> bool:
        """Forget a group and what it is forbidden; return whether there was one.

        Raises:
            StoreError: the file cannot be written; the group is still there.
        """
        if name not in self._table:
            return False
        forbidden = {group: topics for group, topics in self._forbidden.items() if group != name}
        self._change({}, without=name, forbidden=forbidden)
        return True

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid a group to read a topic.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        if self.is_forbidden(group, topic) != readable:
            return
        topics = dict(self._forbidden.get(group, {}))
        topics[topic] = topics.get(topic, 0) ^ READ_BIT
        if not topics[topic]:
            del topics[topic]
        forbidden = self._forbidden | {group: topics}
        self._change({}, forbidden={name: bits for name, bits in forbidden.items() if bits})

    def _change(
        self,
        changes: Mapping[str, SubscriptionGroupConfig],
        *,
        without: str | None = None,
        forbidden: Forbidden | None = None,
    ) -> None:
        table = {**self._table, **changes}
        if without is not None:
            del table[without]
        forbidden = self._forbidden if forbidden is None else forbidden
        version = self.version.next(self._clock.now_ms())
        self._file.save(
            {
                "dataVersion": version,
                "forbiddenTable": forbidden,
                "subscriptionGroupTable": table,
            }
        )
        self._table, self._forbidden, self.version = table, forbidden, version


def _read(content: Mapping[str, Any], file: JsonFile) -> SubscriptionGroupWrapper:
    try:
        found = read_struct(content, SubscriptionGroupWrapper)
    except FastJsonError as problem:
        raise StoreError(f"{file.path} has no table of groups: {problem}") from problem
    for name, config in found.subscription_group_table.items():
        config.group_name = name
    return found
