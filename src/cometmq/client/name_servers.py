"""The name servers a client may ask, and which of them it asks next.

The list is shuffled once, so that clients spread over it. A server is kept while it answers; within
one call the next one is tried when it does not. Source: NettyRemotingClient's name server choice,
RocketMQ 5.3; trying the next one within the same call is ours.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence

from cometmq.client.errors import NameServerError
from cometmq.model.errors import ConfigError, RemotingError
from cometmq.protocol.command import Command
from cometmq.protocol.headers import Header
from cometmq.remoting import RemotingClient

log = logging.getLogger(__name__)


def parse_addresses(text: str | Iterable[str], *, required: bool = True) -> list[str]:
    """Take a list of addresses apart: ``host:port;host:port``, or any iterable of them.

    Raises:
        ConfigError: an address is not ``host:port``, or there is none and one is required.
    """
    parts = text.split(";") if isinstance(text, str) else list(text)
    addresses = list(dict.fromkeys(_address(part.strip()) for part in parts if part.strip()))
    if required and not addresses:
        raise ConfigError("no name server address: expected host:port;host:port")
    return addresses


def _address(text: str) -> str:
    address = text.rpartition("/")[2]
    host, colon, port = address.rpartition(":")
    if not host or not colon or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"a name server address {text!r}: expected host:port")
    return address


class NameServers:
    """Calls a name server, going on to the next one when the present one does not answer."""

    def __init__(
        self, remoting: RemotingClient, addresses: Sequence[str], *, shuffle: bool = True
    ) -> None:
        self._remoting = remoting
        self._shuffles = shuffle
        self._addresses: list[str] = []
        self._current = 0
        self.replace(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address, in the order they are tried."""
        return tuple(self._addresses)

    @property
    def current(self) -> str:
        """The address that responded last, or that is tried first."""
        return self._addresses[self._current] if self._addresses else ""

    def replace(self, addresses: Sequence[str]) -> None:
        """Ask these from now on; nothing changes if they are the same ones in another order."""
        if set(addresses) == set(self._addresses):
            return
        before = self._addresses
        self._addresses = list(addresses)
        if self._shuffles:
            random.shuffle(self._addresses)
        if before:
            log.info("name servers replaced from=%s to=%s", before, self._addresses)
        for gone in set(before) - set(addresses):
            self._remoting.disconnect(gone)
        kept = before[self._current] if before else ""
        self._current = self._addresses.index(kept) if kept in self._addresses else 0

    async def call(
        self, code: int, header: Header | None = None, body: bytes = b"", *, timeout: float
    ) -> Command:
        """Ask the name servers in turn until one answers, whatever the answer says.

        Args:
            code: the request code.
            header: its header, if it has one.
            body: its body.
            timeout: seconds for the whole call; each server gets its share of what is left.

        Raises:
            NameServerError: none of them answered in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        failures: list[str] = []
        order = self._order()
        for address in order:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            share = left / (len(order) - len(failures))
            try:
                answer = await self._remoting.call(address, code, header, body, timeout=share)
            except RemotingError as error:
                failures.append(f"{address}: {error}")
                continue
            self._settle(address)
            return answer
        raise NameServerError(
            "no name server responded: " + ("; ".join(failures) or "none is known")
        )

    def _order(self) -> list[str]:
        return self._addresses[self._current :] + self._addresses[: self._current]

    def _settle(self, address: str) -> None:
        """Stay with the one that answered, unless the list was replaced meanwhile."""
        if address not in self._addresses:
            return
        before, self._current = self._current, self._addresses.index(address)
        if before != self._current:
            log.warning("name server changed from=%s to=%s", self._addresses[before], address)
