"""The uploaded filters, one for each topic and consumer group.

Source: FilterClassManager, RocketMQ 4.2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from cometmq.filtersrv.config import FilterServerSettings
from cometmq.filtersrv.worker import FilterBusyError, Limits, Source, Worker

log = logging.getLogger(__name__)

UPLOADS_MAX = 64
"""Uploads that may wait while others are loaded."""


class Filters:
    """The uploaded filters; the least recently used one is removed first.

    Args:
        settings: returns the settings of the filter server.
    """

    def __init__(self, settings: Callable[[], FilterServerSettings]) -> None:
        self._settings = settings
        self._workers: OrderedDict[tuple[str, str], Worker] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()
        self._uploads = 0

    def __len__(self) -> int:
        return len(self._workers)

    def find(self, topic: str, group: str) -> Worker | None:
        """Return the filter of a group, or None."""
        found = self._workers.get((topic, group))
        if found is not None:
            self._workers.move_to_end((topic, group))
        return found

    async def put(self, topic: str, group: str, source: Source) -> None:
        """Load a filter, unless the same is loaded already. Until then the earlier one is used.

        Raises:
            FilterError: it cannot be loaded; the earlier filter stays.
            FilterBusyError: too many uploads wait already.
        """
        if self._uploads >= UPLOADS_MAX:
            raise FilterBusyError(f"{UPLOADS_MAX} uploads wait to be loaded already")
        self._uploads += 1
        try:
            async with self._one_at_a_time:
                await self._load(topic, group, source)
        finally:
            self._uploads -= 1

    async def _load(self, topic: str, group: str, source: Source) -> None:
        earlier = self.find(topic, group)
        if earlier is not None and earlier.source == source:
            return
        worker = await self._loaded(f"{topic}@{group}", source)
        self._workers[topic, group] = worker
        self._workers.move_to_end((topic, group))
        if earlier is not None:
            await earlier.close()
        while len(self._workers) > self._settings().filters_max:
            (topic, group), oldest = self._workers.popitem(last=False)
            log.warning(
                "filter removed: there are more than filterClassNumsMax filter=%s@%s", topic, group
            )
            await oldest.close()

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
        workers = list(self._workers.values())
        self._workers.clear()
        for worker in workers:
            await worker.close()
