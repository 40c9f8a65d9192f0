"""The client of a session: opened at the first call, closed after an idle time.

It runs in the loop of the process's portal. A forked child and whoever comes after an idle time
find no client, and open one anew; so a session can be kept as long as its process lives.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from cometmq.client.blocking.portal import Portal, acquire_portal, release_portal
from cometmq.client.library import ClientConnection
from cometmq.client.settings import ClientSettings

IDLE_S: Final = 120.0
"""A client that nobody used for so long is closed."""
CLOSE_S: Final = 5.0
"""How long closing one may take."""


class ClientLease:
    """Gives a client to whoever needs one.

    Args:
        settings: asked for each client that is opened.
        idle_s: when a client that nobody uses is closed.
    """

    def __init__(self, settings: Callable[[], ClientSettings], *, idle_s: float = IDLE_S) -> None:
        self._settings = settings
        self._idle_s = idle_s
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._portal: Portal | None = None
        self._connection: ClientConnection | None = None
        self._users = 0
        self._used_s = monotonic()
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def use(self) -> Iterator[tuple[Portal, ClientConnection]]:
        """Give the portal and a running client, which stays open within ``with``.

        Raises:
            OptionError: a secret cannot be looked up here.
        """
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            opened = self._open()
            self._users += 1
        try:
            yield opened
        finally:
            with self._lock:
                self._users -= 1
                self._used_s = monotonic()

    def close(self) -> None:
        """Close the client and let the portal go; the next use opens both again."""
        if self._process != os.getpid():
            return
        with self._lock:
            portal, self._portal = self._portal, None
            connection, self._connection = self._connection, None
        if portal is None:
            return
        try:
            if connection is not None:
                portal.run(connection.close(), CLOSE_S)
        finally:
            release_portal(portal)

    def _open(self) -> tuple[Portal, ClientConnection]:
        if self._portal is None:
            self._portal = acquire_portal()
        if self._connection is None:
            self._connection = self._portal.run(self._started(self._settings()))
            self._used_s = monotonic()
        return self._portal, self._connection

    async def _started(self, settings: ClientSettings) -> ClientConnection:
        connection = ClientConnection(settings=settings)
        await connection.start()
        self._look_after(connection, self._idle_s)
        return connection

    def _look_after(self, connection: ClientConnection, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._look, connection)

    def _look(self, connection: ClientConnection) -> None:
        """Close the client if nobody has used it; runs in the loop, which must not wait."""
        if not self._lock.acquire(blocking=False):
            self._look_after(connection, self._idle_s / 4)
            return
        try:
            if self._connection is not connection:
                return
            left_s = self._used_s + self._idle_s - monotonic()
            if self._users or left_s > 0:
                self._look_after(connection, max(left_s, self._idle_s / 4))
                return
            self._connection = None
        finally:
            self._lock.release()
        task = asyncio.get_running_loop().create_task(connection.close(), name="close idle client")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
