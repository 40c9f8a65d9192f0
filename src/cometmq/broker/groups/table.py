"""The consumer groups of one broker: their settings, their creation, and their file.

    subscriptionGroup.json := {"dataVersion": version, "forbiddenTable": {group: {topic: bits}},
                               "subscriptionGroupTable": {name: settings}}

An unknown group is created on its first use if the settings allow that; the groups of tools exist
from the start. Bit 2 of a forbidden entry means that a group may not read a topic. A change is
visible once it is on disk, see `StoredTable`.

Source: SubscriptionGroupManager, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from cometmq.broker.checks import check_group
from cometmq.broker.config import BrokerSettings
from cometmq.broker.creations import GROUP, CreationLimits
from cometmq.broker.prerequisites import CreationRequiredError
from cometmq.broker.stored_table import Change, ConfigTable, create, remove
from cometmq.model.errors import InvalidNameError, ResponseError, StoreError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies.group import SubscriptionGroupWrapper
from cometmq.protocol.codes import FAQ, ResponseCode
from cometmq.remoting.slices import Slices
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock

if TYPE_CHECKING:
    from cometmq.remoting import Request

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

_GROUPS, _FORBIDDEN = "subscriptionGroupTable", "forbiddenTable"
READ_BIT = 1 << 2
"""The bit of a forbidden entry that stands for reading."""

Forbidden = dict[str, dict[str, int]]


class GroupTable(ConfigTable[SubscriptionGroupConfig]):
    """All consumer groups of one broker.

    Args:
        settings: returns the current settings of the broker.
        file: subscriptionGroup.json.
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
        super().__init__(file, _GROUPS, "group_name", others=[_FORBIDDEN], clock=clock)
        self._settings = settings
        self._creations = creations or CreationLimits(settings)
        self._forbidden: Forbidden = self._stored.sections[_FORBIDDEN]

    # --- reading --------------------------------------------------------------------------------

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
        self._load(SubscriptionGroupWrapper, _sections)
        missing = [name for name in PREDEFINED_GROUPS if name not in self._table]
        if missing:
            self.put_now(SubscriptionGroupConfig(group_name=name) for name in missing)

    async def copy(
        self, master: SubscriptionGroupWrapper, is_current: Callable[[], bool] = lambda: True
    ) -> bool:
        """Take over the groups of the master of this slave; return whether anything changed.

        Args:
            master: its groups.
            is_current: returns whether that broker is still the master of this slave; nothing
                changes if it is not: this broker may be the master, with newer groups.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        keeps = PREDEFINED_GROUPS.__contains__
        return await self._replace(
            master.data_version, _sections(master), keeps=keeps, is_current=is_current
        )

    # --- creation and change --------------------------------------------------------------------

    async def get_or_create(
        self, name: str, request: Request | None = None
    ) -> SubscriptionGroupConfig | None:
        """Return a group's settings; create the group if the settings of the broker allow that.

        Args:
            name: of the group.
            request: the request that needs it; None for the broker itself, which has no limits.

        Returns:
            None if there is no such group and none is created, because of the settings or because
            the name is illegal.

        Raises:
            ResponseError: the request may not create it.
        """
        await self.create_all([name], request)
        return self._table.get(name)

    async def create_all(self, names: Iterable[str], request: Request | None = None) -> None:
        """Create the groups that do not exist and may be created, with one write.

        Raises:
            ResponseError: the request may not create one of them; the others are created.
        """
        refusal: ResponseError | None = None
        allowed: list[str] = []
        with ExitStack() as creating:
            for name in names:
                if not self.may_create(name):
                    continue
                try:
                    creating.enter_context(
                        self._creations.creating(GROUP, name, len(self._table), request)
                    )
                except ResponseError as refused:
                    refusal = refused
                else:
                    allowed.append(name)
            if allowed:
                await self._create(allowed)
        if refusal is not None:
            raise refusal

    async def _create(self, names: list[str]) -> None:
        """Create groups with default settings; only in memory if the disk refuses."""
        created = {name: SubscriptionGroupConfig(group_name=name) for name in names}
        try:
            await self._stored.change(create(_GROUPS, *entry) for entry in created.items())
        except StoreError as problem:
            log.warning("groups created in memory only groups=%s: %s", ",".join(names), problem)
            for name in names:
                if name not in self._table:
                    self._stored.keep(_GROUPS, name, created[name])
        async for name in Slices().each(names):
            log.info("group created on first use group=%s", name)

    def require(
        self, name: str, remark: str = "subscription group not exist, {} "
    ) -> SubscriptionGroupConfig:
        """Return the settings of a group that a request names.

        Args:
            name: from the request.
            remark: the response's remark if there is no such group; ``{}`` stands for the name.

        Raises:
            PrerequisiteError: it does not exist, and may be created.
            ResponseError: 26, there is no such group; 29, its name is illegal.
        """
        if name not in self._table:
            check_group(name)
        group = self.resolve(name)
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark.replace("{}", name) + FAQ
            )
        return group

    def resolve(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings; None if there is no such group and none is created.

        Raises:
            PrerequisiteError: it does not exist, and may be created.
        """
        group = self._table.get(name)
        if group is None and self.may_create(name):
            raise CreationRequiredError(partial(self.get_or_create, name))
        return group

    def may_create(self, name: str) -> bool:
        """Return whether a group does not exist and is created on its first use."""
        if name in self._table:
            return False
        settings = self._settings()
        is_system = name.startswith(SYSTEM_GROUP_PREFIX) and settings.enable_create_sys_group
        if not (is_system or settings.auto_create_subscription_group):
            return False
        try:
            check_group_name(name)
        except InvalidNameError:
            return False
        return True

    async def change(
        self,
        changes: Mapping[str, Callable[[SubscriptionGroupConfig | None], SubscriptionGroupConfig]],
    ) -> bool:
        """Change groups by functions of their present settings; return whether any changed.

        Raises:
            InvalidNameError: a group's name is illegal; nothing was changed.
            StoreError: the file cannot be written; nothing was changed.
        """
        async for name in Slices().each(changes):
            check_group_name(name)
        return await super().change(changes)

    async def delete(self, name: str) -> bool:
        """Delete a group and its forbidden topics; return whether there was one.

        Raises:
            StoreError: the file cannot be written; the group is still there.
        """
        found: list[SubscriptionGroupConfig | None] = []
        take = Change(_GROUPS, name, found.append)  # which returns None: the entry is removed
        await self._stored.change([take, remove(_FORBIDDEN, name)])
        self._creations.forget(GROUP, name)
        return found[-1] is not None

    async def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid a group to read a topic.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        await self._stored.change(
            [Change(_FORBIDDEN, group, lambda topics: _set_readable(topics, topic, readable))]
        )


def _sections(content: SubscriptionGroupWrapper) -> dict[str, dict[str, Any]]:
    return {
        _GROUPS: content.subscription_group_table,
        _FORBIDDEN: content.forbidden_table or {},
    }


def _set_readable(
    topics: dict[str, int] | None, topic: str, readable: bool
) -> dict[str, int] | None:
    bits = dict(topics or {})
    bits[topic] = bits.get(topic, 0) & ~READ_BIT if readable else bits.get(topic, 0) | READ_BIT
    return {name: value for name, value in bits.items() if value} or None
