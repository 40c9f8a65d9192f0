"""The other brokers that have items of logical queues: their addresses, and requests to them.

A request goes to the master of a broker. While name servers know no master, or it does not accept
connections, a replica serves the request: the items of a lost broker stay readable.

Source: BrokerOuterAPI and TopicQueueMappingManager, RocketMQ 5.3, which asks masters only, and
learns their addresses 10 seconds after its start.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from cometmq.broker.static_topics.refusals import elsewhere_failed
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.protocol.bodies.route import MASTER_ID, GetBrokerMemberGroupResponseBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.namesrv import GetBrokerMemberGroupRequest
from cometmq.remoting import ConnectError, RemotingClient, Supervisor, check
from cometmq.remoting.slices import decode

log = logging.getLogger(__name__)

ADDRESSES_S: Final = 5.0
"""How long addresses are used before they are requested again, in the background."""
REPEATED_S: Final = 1.0
"""How soon they are requested again if they accept no connection."""
LOOK_UP_S: Final = 2.0
"""Timeout of a request to a name server."""
BROKERS_MAX: Final = 10_000
"""Brokers whose addresses are known."""
IN_FLIGHT_MAX: Final = 2_000
"""Requests that wait for other brokers; further ones are refused as busy."""
REPLICAS_MAX: Final = 3
"""Members of a broker that one request is sent to, one after the other."""
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Messages of other brokers that are in memory; further pulls wait."""


class _Known(NamedTuple):
    addresses: dict[int, str]
    """By broker id; 0 is the master."""
    until_s: float


class BytesInFlight:
    """Limits the bytes of responses that are requested, or here and not handed on.

    Args:
        bytes_max: the limit; one response alone may be larger.
        timeout_s: returns how long a request waits for room.
    """

    def __init__(self, bytes_max: int, timeout_s: Callable[[], float]) -> None:
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.bytes = 0
        """The bytes in flight."""

    async def take(self, size: int) -> int:
        """Wait for room, behind those that wait already; return the size.

        Raises:
            ResponseError: 2, too many wait, or for too long.
        """
        if self._waiting or not self._has_room(size):
            await self._wait(size)
        self.bytes += size
        self._wake()
        return size

    async def _wait(self, size: int) -> None:
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise _busy(f"{len(self._waiting)} pulls wait for messages of other brokers")
        try:
            async with asyncio.timeout(self._timeout_s()):
                while True:
                    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(room)
                    await room
                    if self._has_room(size):
                        return
        except TimeoutError:
            self._wake()  # it may have been the next one
            raise _busy(f"{self.bytes} bytes of messages of other brokers are in flight") from None

    def _has_room(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self._bytes_max

    def correct(self, taken: int, size: int) -> int:
        """Count a response that is here with its own size; return that."""
        self.bytes += size - taken
        return size

    def give(self, taken: int) -> None:
        """Give back the room of a response that was handed on."""
        self.bytes -= taken
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.bytes < self._bytes_max:
            room = self._waiting.popleft()
            if not room.done():
                room.set_result(None)
                return


class ItemBrokers:
    """Sends requests to the brokers of items.

    Args:
        client: sends the requests.
        name_servers: returns the addresses of the name servers.
        cluster: the name of the cluster of this broker.
        timeout_s: returns the timeout of a request.
    """

    def __init__(
        self,
        client: RemotingClient,
        name_servers: Callable[[], Sequence[str]],
        *,
        cluster: str,
        timeout_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._name_servers = name_servers
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._known: dict[str, _Known] = {}
        self._look_ups: dict[str, asyncio.Task[None]] = {}
        self._tasks = Supervisor("static-topics")
        self._in_flight = 0
        self.messages = BytesInFlight(MESSAGE_BYTES_MAX, timeout_s)
        """The messages that pulls read at other brokers."""
        self.forwarded = 0
        """Requests that were sent to other brokers."""
        self.failed = 0
        """Requests that no other broker has answered."""

    async def call(
        self, broker: str, code: int, header: Header, *, masters_only: bool = False
    ) -> Command:
        """Send a request to a broker, and return the response with any code.

        Args:
            broker: its name.
            code, header: the request.
            masters_only: whether no replica may serve it.

        Raises:
            ResponseError: 1, its address is unknown, or it does not respond; 2, too many wait.
        """
        if self._in_flight >= IN_FLIGHT_MAX:
            raise _busy(f"{self._in_flight} requests wait for the brokers of items")
        self._in_flight += 1
        self.forwarded += 1
        try:
            async with asyncio.timeout(self._timeout_s()):
                members_max = 1 if masters_only else REPLICAS_MAX
                return await self._call_any(broker, code, header, members_max)
        except TimeoutError:
            self.failed += 1
            problem = f"error from remoting layer: no response within {self._timeout_s():g} s"
            raise elsewhere_failed(broker, problem) from None
        except RemotingError as failure:
            self.failed += 1
            raise elsewhere_failed(broker, f"error from remoting layer: {failure}") from failure
        finally:
            self._in_flight -= 1

    async def _call_any(self, broker: str, code: int, header: Header, members_max: int) -> Command:
        addresses = await self._addresses(broker)
        try:
            return await self._call_members(broker, addresses, code, header, members_max)
        except ConnectError:
            newest = await self._newest_addresses(broker)
            if newest == addresses:
                raise
        return await self._call_members(broker, newest, code, header, members_max)

    async def _call_members(
        self,
        broker: str,
        addresses: dict[int, str],
        code: int,
        header: Header,
        members_max: int,
    ) -> Command:
        """Send a request to the first member of a broker that accepts a connection.

        Raises:
            ConnectError: none does.
        """
        if not addresses or (members_max == 1 and MASTER_ID not in addresses):
            self.failed += 1
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"cannot find addr for broker {broker[:300]}"
            )
        failure: ConnectError | None = None
        for broker_id in sorted(addresses)[:members_max]:
            try:
                return await self._client.call(
                    addresses[broker_id], code, header, timeout=self._timeout_s()
                )
            except ConnectError as problem:
                failure = failure or problem
        assert failure is not None
        raise failure

    async def _addresses(self, broker: str) -> dict[int, str]:
        """Return the addresses of a broker by id, the newest that are known."""
        known = self._known.get(broker)
        if known is not None and asyncio.get_running_loop().time() < known.until_s:
            return known.addresses
        look_up = self._look_up_soon(broker)
        if known is None or not known.addresses:
            await asyncio.wait([look_up])
            known = self._known.get(broker)
        return {} if known is None else known.addresses

    async def _newest_addresses(self, broker: str) -> dict[int, str]:
        """Return the addresses of a broker whose known ones accept no connection."""
        known = self._known.get(broker)
        now_s = asyncio.get_running_loop().time()
        if known is None or now_s >= known.until_s - ADDRESSES_S + REPEATED_S:
            await asyncio.wait([self._look_up_soon(broker)])
            known = self._known.get(broker)
        return {} if known is None else known.addresses

    def _look_up_soon(self, broker: str) -> asyncio.Task[None]:
        look_up = self._look_ups.get(broker)
        if look_up is None:
            look_up = self._tasks.spawn(self._look_up(broker), "look-up")
            self._look_ups[broker] = look_up
            look_up.add_done_callback(lambda _: self._look_ups.pop(broker, None))
        return look_up

    async def _look_up(self, broker: str) -> None:
        """Request the addresses of a broker; if that fails, the known ones stay."""
        header = GetBrokerMemberGroupRequest(cluster_name=self._cluster, broker_name=broker)
        for name_server in self._name_servers():
            try:
                response = await self._client.call(
                    name_server, RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout=LOOK_UP_S
                )
                body = await decode(GetBrokerMemberGroupResponseBody, check(response).body)
            except CometError as problem:
                log.debug("cannot look up a broker namesrv=%s: %s", name_server, problem)
                continue
            group = body.broker_member_group
            found = {} if group is None else group.broker_addrs
            known = self._known.get(broker)
            while len(self._known) >= BROKERS_MAX:
                del self._known[next(iter(self._known))]
            # The addresses of a broker that is away are tried until it has new ones.
            addresses = found or (known.addresses if known else {})
            until_s = asyncio.get_running_loop().time() + (ADDRESSES_S if found else 0.0)
            self._known[broker] = _Known(addresses, until_s)
            return

    def in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do work that no request handler waits for, such as the response to a pull."""
        self._tasks.spawn(work, name)

    async def close(self) -> None:
        """End all requests."""
        await self._tasks.cancel()


def _busy(problem: str) -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{problem}")
