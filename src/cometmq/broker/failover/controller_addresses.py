"""The addresses of controllers whose names are in the DNS (``fetchControllerAddrByDnsLookup``).

Each name in ``controllerAddr`` stands for all addresses that the DNS has for it. They are looked up
at intervals, because heartbeats go to all controllers, and before the active controller is looked
for. While the DNS gives no response the addresses stay as they were.

Source: ReplicasManager.updateControllerAddr, RocketMQ 5.3, which accepts one name only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from cometmq.model.address import host_and_port
from cometmq.model.errors import CometError
from cometmq.remoting.client import split_address
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

INTERVAL_S: Final = 120.0
"""The addresses are looked up again after this time."""
FRESH_S: Final = 10.0
"""Addresses that were looked up within this time are used without another lookup."""
TIMEOUT_S: Final = 2.0
"""The longest time that a request waits for a lookup; the lookup itself goes on."""
ADDRESSES_MAX: Final = 64
"""Addresses of one name; further ones are left out."""

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]


class ControllerAddresses:
    """Looks up the addresses of controllers.

    Args:
        names: returns ``host:port`` of each name.
        resolve: returns the addresses of a host, with its port; OSError if there are none.
    """

    def __init__(self, names: Callable[[], Sequence[str]], resolve: Resolve | None = None) -> None:
        self._names = names
        self._resolve = resolve or _resolve
        self._found: dict[str, Sequence[str]] = {}
        self._began_s = -INTERVAL_S
        """When the last lookup began."""
        self._lookup: asyncio.Task[None] | None = None
        self._failures = FailureLog(
            log,
            fails="cannot look up the addresses of controllers, retrying",
            works="the addresses of controllers are found again",
            name="name",
        )

    def known(self) -> Sequence[str]:
        """Return the addresses as they were looked up last; a new lookup begins if one is due."""
        self._begin(INTERVAL_S)
        return [*dict.fromkeys(one for name in self._names() for one in self._found.get(name, ()))]

    async def look_up(self) -> None:
        """Return when the addresses are fresh, or the DNS gave no response in time."""
        self._begin(FRESH_S)
        if self._lookup is not None:
            await asyncio.wait([self._lookup], timeout=TIMEOUT_S)

    def close(self) -> None:
        """End a lookup."""
        if self._lookup is not None:
            self._lookup.cancel()

    def _begin(self, age_s: float) -> None:
        """Begin a lookup if none runs and the last one is as old as that."""
        loop = asyncio.get_running_loop()
        if self._lookup is not None or (
            loop.time() - self._began_s < age_s and self._found.keys() >= set(self._names())
        ):
            return
        self._began_s = loop.time()
        self._lookup = loop.create_task(self._look_up(), name="controller-addresses")

    async def _look_up(self) -> None:
        try:
            names = self._names()
            for name in names:
                try:
                    host, port = split_address(name)
                    found = await self._resolve(host, port)
                except (CometError, OSError, UnicodeError) as problem:
                    self._failures.failed(name, problem)
                    continue
                self._failures.succeeded(name)
                self._found[name] = sorted(found)[:ADDRESSES_MAX]
            for name in self._found.keys() - set(names):
                del self._found[name]
        finally:
            self._lookup = None


async def _resolve(host: str, port: int) -> Iterable[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {host_and_port(str(address[0]), port) for *_, address in found}
