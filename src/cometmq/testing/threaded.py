"""A cluster that runs in its own thread, for tests without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Self

from cometmq.testing.cluster import Cluster

START_S, STOP_S = 30.0, 10.0


class ThreadedCluster:
    """A `Cluster` for code without an event loop.

    Example: ``with ThreadedCluster() as cluster: asyncio.run(test(cluster.name_servers))``
    """

    def __init__(self, *, brokers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self._cluster = Cluster(brokers=brokers, settings=settings)
        self._started: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="cometmq cluster", daemon=True)

    @property
    def name_servers(self) -> str:
        """The address of the name server, for clients."""
        return self._cluster.name_servers

    @property
    def broker_addresses(self) -> list[str]:
        """The addresses of the brokers."""
        return self._cluster.broker_addresses

    def start(self) -> None:
        """Start the thread and wait until every server is ready."""
        self._thread.start()
        self._started.result(timeout=START_S)

    def stop(self) -> None:
        """Stop every server and wait until the thread ends.

        Raises:
            TimeoutError: the thread did not end in time.
        """
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the cluster did not stop within {STOP_S:g} s")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
                return
            raise

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with self._cluster:
            self._started.set_result(None)
            await self._stopping.wait()
