"""Requests to the cluster: their number in flight is bounded, and lists are kept for seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Generic, TypeVar

from cometmq.client import AdminClient
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    application_topics,
    check_topic_name,
)
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.bodies.group import OffsetWrapper
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.protocol.codes import ResponseCode

T = TypeVar("T")
A = TypeVar("A")

IN_FLIGHT_MAX = 16
"""Requests to servers at a time, over all pages."""
LIST_S = 5.0
"""For how long the lists of topics and brokers are kept."""
GROUPS_S = 15.0
"""For how long the list of groups is kept: each master is asked for the settings of all of its
groups."""
APPLICATION = "application"
"""The type of the topics of applications."""
NAMED_MAX = 20
"""Names in an error."""
BROKERS_MAX = 256
"""Brokers that pages show."""
CONTROLLERS_S = 60.0
"""For how long the addresses of controllers are kept: some brokers are asked for their settings."""
CONTROLLER_SETS_MAX = 16
"""Broker names of which one broker is asked for its controllers."""


class Kept(Generic[T]):
    """A value that is read at most once in some seconds, however many pages need it."""

    def __init__(self, read: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._value: tuple[float, T] | None = None
        self._forgotten = 0

    async def get(self) -> T:
        """Return the value."""
        async with self._lock:
            kept, forgotten = self._value, self._forgotten
            if kept is None or time.monotonic() - kept[0] > self._seconds:
                kept = time.monotonic(), await self._read()
                if forgotten == self._forgotten:
                    self._value = kept
            return kept[1]

    def forget(self) -> None:
        """Read the value anew the next time, also if it is being read now."""
        self._value = None
        self._forgotten += 1


class Reads:
    """What pages read of a cluster.

    Args:
        admin: the client, which its owner starts and closes.
    """

    def __init__(self, admin: AdminClient) -> None:
        self.admin = admin
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._topics = Kept(self._read_topics, LIST_S)
        self._brokers = Kept(self._read_brokers, LIST_S)
        self._groups = Kept(self._read_groups, GROUPS_S)
        self._controllers = Kept(self._read_controllers, CONTROLLERS_S)

    async def topics(self) -> dict[str, str]:
        """Return the names of all topics in order, each with its type: ``application``, ``retry``,
        ``dead letters`` or ``system``."""
        return await self._topics.get()

    async def brokers(self) -> list[RegisteredBroker]:
        """Return the registered brokers in order of cluster, name and id, `BROKERS_MAX` at most."""
        return await self._brokers.get()

    async def check_name(self, topic: str) -> None:
        """Check that an application may have a topic of this name.

        Raises:
            InvalidNameError: no topic may.
            ConfigError: it is a name of the brokers, or one of retries or dead letters.
        """
        check_topic_name(topic)
        brokers = await self.brokers()
        names, clusters = ({each.name for each in brokers}, {each.cluster for each in brokers})
        if not application_topics([topic], names, clusters):
            raise ConfigError(
                f"{topic} is a name of the brokers, or of retries and dead letters of a group:"
                " expected another name"
            )

    async def masters(self) -> list[RegisteredBroker]:
        """Return the registered masters, in the same order."""
        return [each for each in await self.brokers() if each.is_master]

    async def chosen_masters(
        self, cluster: str, brokers: Collection[str]
    ) -> list[RegisteredBroker]:
        """Return the masters of a cluster or of all, and of them those that are named, or all.

        Raises:
            ConfigError: there is none, or one of the named brokers has none.
        """
        found = [each for each in await self.masters() if cluster in ("", each.cluster)]
        names = [each.name for each in found]
        if unknown := [name for name in brokers if name not in names]:
            raise ConfigError(
                f"broker {unknown[0]} has no master{f' in {cluster}' if cluster else ''}: expected"
                f" some of {', '.join(names[:NAMED_MAX])}"
            )
        if not found:
            clusters = sorted({each.cluster for each in await self.masters()})
            raise ConfigError(
                f"cluster {cluster or 'of any name'} has no master: expected one of"
                f" {', '.join(clusters[:NAMED_MAX])}"
            )
        return [each for each in found if not brokers or each.name in brokers]

    async def groups(self) -> tuple[list[str], list[str]]:
        """Return the names of all groups in order, and an error for each master without them."""
        brokers, errors = await self._groups.get()
        return list(brokers), errors

    async def brokers_of_group(self, group: str) -> list[RegisteredBroker]:
        """Return the masters that have settings of a group."""
        names = (await self._groups.get())[0].get(group, ())
        return [each for each in await self.masters() if each.name in names]

    def forget(self) -> None:
        """Read all lists anew the next time: something was changed."""
        for each in (self._topics, self._brokers, self._groups):
            each.forget()

    async def controllers(self) -> list[str]:
        """Return the addresses of the controllers that brokers name, in order."""
        return await self._controllers.get()

    async def online(
        self, group: str, brokers: Iterable[str] | None = None
    ) -> ConsumerConnection | None:
        """Return the members of a group, as one of some brokers or of all knows them; None if no
        member is online."""
        try:
            return await self.admin.consumer_connections(group, brokers=brokers)
        except ResponseError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            return None

    async def offsets(self, group: str) -> dict[MessageQueue, OffsetWrapper]:
        """Return the offsets of a group; none if no broker has any."""
        try:
            return await self.admin.consume_stats(group)
        except ResponseError as error:
            if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST):
                return {}  # RocketMQ responds so for a group that has consumed nothing
            raise

    async def each(
        self, items: Iterable[A], read: Callable[[A], Awaitable[T]]
    ) -> list[T | CometError]:
        """Return what ``read`` gives for each item, or its error; `IN_FLIGHT_MAX` at a time."""

        async def one(item: A) -> T | CometError:
            async with self._slots:
                try:
                    return await read(item)
                except CometError as error:
                    return error

        return list(await asyncio.gather(*map(one, items)))

    async def _read_topics(self) -> dict[str, str]:
        names, brokers = await self.admin.topics(), await self.brokers()
        own = application_topics(
            names, (each.name for each in brokers), (each.cluster for each in brokers)
        )
        return {name: _type(name) for name in names} | dict.fromkeys(own, APPLICATION)

    async def _read_brokers(self) -> list[RegisteredBroker]:
        return (await self.admin.cluster_info()).registered()[:BROKERS_MAX]

    async def _read_groups(self) -> tuple[dict[str, list[str]], list[str]]:
        masters = await self.masters()
        brokers: dict[str, list[str]] = {}
        errors: list[str] = []

        async def names_at(master: RegisteredBroker) -> list[str]:
            return list(await self.admin.broker_groups(master.address))

        for master, found in zip(masters, await self.each(masters, names_at), strict=True):
            if isinstance(found, CometError):
                errors.append(f"{master.name}: {found}")
            else:
                for group in found:
                    brokers.setdefault(group, []).append(master.name)
        return dict(sorted(brokers.items())), errors

    async def _read_controllers(self) -> list[str]:
        by_name = {each.name: each for each in reversed(await self.brokers())}
        asked = list(by_name.values())[-CONTROLLER_SETS_MAX:]

        async def named_by(broker: RegisteredBroker) -> list[str]:
            settings = await self.admin.broker_config(broker.address)
            if settings.get("enableControllerMode") != "true":
                return []
            return settings.get("controllerAddr", "").split(";")

        found = await self.each(asked, named_by)
        lists = [each for each in found if not isinstance(each, CometError)]
        return sorted({address.strip() for each in lists for address in each if address.strip()})


def lag_of(row: OffsetWrapper) -> int:
    """Return how many messages of a queue were not consumed yet."""
    return max(row.broker_offset - row.consumer_offset, 0)


def _type(name: str) -> str:
    """Return the type of a topic that is none of an application."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    return "dead letters" if name.startswith(DLQ_PREFIX) else "system"
