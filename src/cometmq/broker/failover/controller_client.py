"""Sends the requests of a broker to its controllers.

One of the controllers is active, and only that one decides. It is looked for with the first request
and again after a request that got no response. Heartbeats go to all of them, so that another one
which becomes active knows which brokers live.

Source: BrokerOuterAPI and ReplicasManager, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.model.errors import CometError, RemotingError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.controller import ControllerGetMetadataInfoResponse
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest
from cometmq.remoting import ConnectError, RemotingClient, Supervisor, check
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.broker.failover.controller_addresses import ControllerAddresses

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
"""Timeout of one request."""
FIND_S: Final = 2.0
"""How long controllers have to say which of them is active."""


class _Metadata(NamedTuple):
    """The active controller, as one controller knows it."""

    address: str
    """The address of the controller that responded."""
    is_active: bool
    """Whether it is the active one."""
    active_address: str
    """The address of the active one as it knows it; may be empty."""


class ControllerUnavailableError(CometError):
    """No controller has decided.

    Args:
        reason: why.
        was_sent: whether a controller may have taken the request all the same.
    """

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


def _found(task: asyncio.Future[_Metadata]) -> _Metadata | None:
    return task.result() if task.exception() is None else None


def _reason(task: asyncio.Future[_Metadata]) -> str:
    return str(task.exception() or "")


class ControllerClient:
    """The connection to a group of controllers.

    Args:
        client: carries the requests.
        addresses: returns the addresses of the controllers.
        names: looks those addresses up in the DNS; None if they are in the settings.
    """

    def __init__(
        self,
        client: RemotingClient,
        addresses: Callable[[], Sequence[str]],
        names: ControllerAddresses | None = None,
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._names = names
        self._active = ""
        """The address of the active controller; empty if it is not known."""
        self._decided_s = 0.0
        self._tasks = Supervisor("controllers")
        self.is_heard = True
        """Whether no request to the active controller has failed since its last response."""
        self._heartbeats: dict[str, asyncio.Task[None]] = {}
        self._failures = FailureLog(
            log,
            fails="cannot send heartbeats to a controller, retrying",
            works="heartbeats reach the controller again",
            name="address",
        )

    async def call(self, code: RequestCode, header: Header, body: bytes = b"") -> Command:
        """Return the response of the active controller, of any code.

        Raises:
            ControllerUnavailableError: there is none, or it gives no response.
        """
        known = self._active
        try:
            return await self._call(code, header, body)
        except ControllerUnavailableError as problem:
            if problem.was_sent or not known:
                raise
        return await self._call(code, header, body)  # another one may be active by now

    async def _call(self, code: RequestCode, header: Header, body: bytes) -> Command:
        address = self._active = self._active or await self._find()
        try:
            response = await self._client.call(address, code, header, body, timeout=TIMEOUT_S)
        except RemotingError as problem:
            self._active, self.is_heard = "", False
            was_sent = not isinstance(problem, ConnectError)
            raise ControllerUnavailableError(f"{problem}", was_sent=was_sent) from problem
        if response.code == ResponseCode.CONTROLLER_NOT_LEADER:
            # Also the response of an active controller that cannot tell whether its store has
            # taken the change.
            self._active, self.is_heard = "", False
            raise ControllerUnavailableError(
                f"controller {address}: {response.remark}", was_sent=True
            )
        self._decided_s, self.is_heard = asyncio.get_running_loop().time(), True
        return response

    @property
    def silent_s(self) -> float:
        """For how long no active controller has responded."""
        return asyncio.get_running_loop().time() - self._decided_s

    async def heartbeat(self, header: BrokerHeartbeatRequest) -> None:
        """Send a heartbeat to the active controller, and return when it has taken it.

        Raises:
            ControllerUnavailableError: there is none, or it gives no response.
            ResponseError: it refuses the heartbeat.
        """
        check(await self.call(RequestCode.BROKER_HEARTBEAT, header))

    def heartbeat_all(self, header: BrokerHeartbeatRequest) -> None:
        """Send a heartbeat to each controller, in the background.

        A controller that takes none does not delay the others, and gets no second one meanwhile.
        """
        for address in self._connected():
            if address not in self._heartbeats:
                task = self._tasks.spawn(
                    self._send_heartbeat(address, header), f"heartbeat-{address}"
                )
                self._heartbeats[address] = task

    async def _send_heartbeat(self, address: str, header: BrokerHeartbeatRequest) -> None:
        try:
            # RocketMQ's brokers wait for no response. But only a missing response shows that the
            # connection was cut: TCP by itself may send again two minutes after the network works.
            await self._client.call(
                address, RequestCode.BROKER_HEARTBEAT, header, timeout=TIMEOUT_S
            )
        except RemotingError as problem:
            self.is_heard = self.is_heard and address != self._active
            self._failures.failed(address, problem)
        else:
            self._failures.succeeded(address)
        finally:
            del self._heartbeats[address]

    async def report_loss(self, header: BrokerHeartbeatRequest) -> None:
        """Let the active controller count this broker as lost.

        It does when the connection of the last heartbeat ends: so one is sent, and its connection
        is closed.

        Raises:
            ControllerUnavailableError: there is none, or it gives no response.
            ResponseError: it refuses the heartbeat.
        """
        await self.heartbeat(header)
        self._client.disconnect(self._active)

    async def _find(self) -> str:
        """Return the address of the active controller.

        Raises:
            ControllerUnavailableError: no controller knows one.
        """
        if self._names is not None:
            await self._names.look_up()
        addresses = self._addresses()
        if not addresses:
            raise ControllerUnavailableError(
                "the DNS has named no address of a controller yet", was_sent=False
            )
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + FIND_S
        requests = [asyncio.ensure_future(self._metadata(address)) for address in addresses]
        pending = set(requests)
        named = ""
        reasons: list[str] = []
        try:
            while pending and (left_s := deadline_s - loop.time()) > 0:
                done, pending = await asyncio.wait(
                    pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                ended = [task for task in requests if task in done]
                found = [one for one in map(_found, ended) if one is not None]
                reasons += [text for text in map(_reason, ended) if text]
                for metadata in found:
                    if metadata.is_active:
                        return metadata.address
                    named = named or metadata.active_address
        finally:
            for task in requests:
                task.cancel()
        if named:
            return named
        reason = "; ".join(reasons) or "none of them is active"
        raise ControllerUnavailableError(
            f"no active controller among {';'.join(addresses)}: {reason}", was_sent=False
        )

    async def _metadata(self, address: str) -> _Metadata:
        response = await self._client.call(
            address, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout=FIND_S
        )
        found = check(response).header(ControllerGetMetadataInfoResponse)
        return _Metadata(address, found.is_leader, found.controller_leader_address or "")

    def _connected(self) -> list[str]:
        """Return the controllers that get heartbeats, each once and in a fixed order."""
        return [*dict.fromkeys(filter(None, (*self._addresses(), self._active)))]

    async def close(self) -> None:
        """End the connections: the controllers then count this broker as lost."""
        await self._tasks.cancel()
        for address in self._connected():
            self._client.disconnect(address)
        if self._names is not None:
            self._names.close()
