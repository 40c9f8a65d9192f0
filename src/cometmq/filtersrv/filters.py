"""The uploaded filters, one for each topic and consumer group.

A filter belongs to the connection that uploaded it, or, once that has closed, to the next one that
uses it. A connection has half of all filters at most, so that no client removes those of all
others. A few uploads are loaded at the same time, each of another connection.

Source: FilterClassManager, RocketMQ 4.2, which loads one at a time and has no limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable

from cometmq.filtersrv.config import FilterServerSettings
from cometmq.filtersrv.worker import FilterBusyError, FilterError, Limits, Source, Worker
from cometmq.remoting.wire import Wire

log = logging.getLogger(__name__)

UPLOADS_MAX = 64
"""Uploads that may wait while others are loaded."""
CLIENT_UPLOADS_MAX = 16
"""Limit of the filters of one connection."""
LOADS_MAX = 4
"""Uploads that are loaded at the same time."""


class _Filter:
    """A filter and the connection to which it belongs."""

    __slots__ = ("client", "worker")

    def __init__(self, client: Wire, worker: Worker) -> None:
        self.client = client
        self.worker = worker


class Filters:
    """The uploaded filters; the least recently used one is removed first.

    Args:
        settings: returns the settings of the filter server.
    """

    def __init__(self, settings: Callable[[], FilterServerSettings]) -> None:
        self._settings = settings
        self._filters: OrderedDict[tuple[str, str], _Filter] = OrderedDict()
        self._locks: dict[Hashable, _CountedLock] = {}
        self._loads = asyncio.Semaphore(LOADS_MAX)
        self._uploads = 0

    def __len__(self) -> int:
        return len(self._filters)

    def find(self, topic: str, group: str, client: Wire | None = None) -> Worker | None:
        """Return the filter of a group, or None.

        Args:
            topic, group: the topic and the group of the filter.
            client: the connection that uses it now.
        """
        found = self._filters.get((topic, group))
        if found is None:
            return None
        self._filters.move_to_end((topic, group))
        if client is not None and found.client.closed:
            found.client = client
        return found.worker

    async def put(self, client: Wire, topic: str, group: str, source: Source) -> None:
        """Load a filter, unless it is loaded already. Until then the earlier one is used.

        Args:
            client: the connection of the upload.
            topic, group: the topic and the group of the filter.
            source: the filter.

        Raises:
            FilterError: it cannot be loaded, or the client has too many; the earlier filter stays.
            FilterBusyError: too many uploads wait already.
        """
        if self._uploads >= UPLOADS_MAX:
            raise FilterBusyError(f"{UPLOADS_MAX} uploads wait to be loaded already")
        if client in self._locks and self._locks[client].users >= CLIENT_UPLOADS_MAX:
            raise FilterBusyError(
                f"{CLIENT_UPLOADS_MAX} uploads of this client wait to be loaded already"
            )
        self._uploads += 1
        try:
            async with self._one_at_a_time(client), self._one_at_a_time((topic, group)):
                await self._load(client, topic, group, source)
        finally:
            self._uploads -= 1

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, key: Hashable) -> AsyncIterator[None]:
        entry = self._locks.setdefault(key, _CountedLock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[key]

    async def _load(self, client: Wire, topic: str, group: str, source: Source) -> None:
        earlier = self.find(topic, group, client)
        if earlier is not None and earlier.source == source:
            return
        async with self._loads:
            if client.closed:
                raise FilterError("the connection of the upload has closed")
            self._check_share(client, topic, group)
            worker = await self._loaded(f"{topic}@{group}", source)
        self._filters[topic, group] = _Filter(client, worker)
        self._filters.move_to_end((topic, group))
        if earlier is not None:
            await earlier.close()
        while len(self._filters) > self._settings().filters_max:
            await self._remove_one()

    def _check_share(self, client: Wire, topic: str, group: str) -> None:
        """Refuse a filter of a client that has its share already.

        Raises:
            FilterError: it has.
        """
        filters_max = self._settings().filters_max
        others = sum(
            each.client is client for key, each in self._filters.items() if key != (topic, group)
        )
        if others >= max(filters_max // 2, 1):
            raise FilterError(
                f"this client has {others} filters, and may have half of filterClassNumsMax"
                f"={filters_max} at most"
            )

    async def _remove_one(self) -> None:
        """Remove the least recently used filter, of a client that has gone if there is one."""
        left = (key for key, each in self._filters.items() if each.client.closed)
        topic, group = next(left, next(iter(self._filters)))
        removed = self._filters.pop((topic, group))
        log.warning(
            "filter removed: there are more than filterClassNumsMax filter=%s@%s", topic, group
        )
        await removed.worker.close()

    async def check_sandbox(self) -> None:
        """Start one process and end it again.

        Raises:
            FilterError: this system cannot run filters.
        """
        probe = "class Probe:\n    def match(self, message, context):\n        return True\n"
        worker = await self._loaded("probe", Source("Probe", probe, 0))
        await worker.close()

    async def _loaded(self, name: str, source: Source) -> Worker:
        worker = Worker(name, source, Limits.of(self._settings()))
        try:
            await worker.load()
        except BaseException:
            await worker.close()
            raise
        return worker

    async def close(self) -> None:
        """End all processes."""
        filters = list(self._filters.values())
        self._filters.clear()
        for each in filters:
            await each.worker.close()


class _CountedLock:
    """A lock, and how many hold it or wait for it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
