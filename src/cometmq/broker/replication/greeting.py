"""The signed greeting of a slave on the port of the log.

    slave to master     greeting := "CMQL" version:u16=1 size:u16 slave ticket
                        slave    := broker_id:i64 set_id:16 store_id:16 incarnation:16
                        ticket   := expires_ms:i64 mac:32

It precedes the messages of RocketMQ. A slave sends it only to a master that has given it a ticket,
in response to EXCHANGE_BROKER_HA_INFO (906) on the port of requests: there access control decides
who gets one. A ticket is good for `TICKET_S`, for one slave, and for the process that has given it.
RocketMQ's masters give none, and its slaves send no greeting.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from cometmq.model.errors import ProtocolError, RemotingError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import check
from cometmq.store import ReplicaError

if TYPE_CHECKING:
    from cometmq.broker.role import Role
    from cometmq.remoting import RemotingClient

MAGIC: Final = b"CMQL"
VERSION: Final = 1
_HEAD: Final = Struct(">4sHH")
_SLAVE: Final = Struct(">q16s16s16s")
_TICKET: Final = Struct(">q32s")
_BODY_BYTES: Final = _SLAVE.size + _TICKET.size
GREETING_BYTES: Final = _HEAD.size + _BODY_BYTES
TICKET_S: Final = 30.0
REQUEST_S: Final = 3.0
"""Timeout of the request for a ticket."""
_NO_NAME: Final = bytes(16)


class SlaveNames(NamedTuple):
    """The id and the names that a slave sends; names are 32 hexadecimal digits, or empty."""

    broker_id: int
    """The id that its controller gave it, or ``brokerId``."""
    set_id: str
    store_id: str
    incarnation: str

    def encode(self) -> bytes:
        """Return the bytes in the greeting."""
        names = (self.set_id, self.store_id, self.incarnation)
        return _SLAVE.pack(self.broker_id, *(bytes.fromhex(name) or _NO_NAME for name in names))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the names in the bytes of a greeting.

        Raises:
            ProtocolError: they are not as long as names are, or the id is out of range.
        """
        if len(data) != _SLAVE.size:
            raise ProtocolError(f"a slave of {len(data)} bytes, expected {_SLAVE.size}")
        broker_id, *names = _SLAVE.unpack(data)
        if broker_id < 1:
            raise ProtocolError(f"a slave named the broker id {broker_id}, expected 1 or more")
        return cls(broker_id, *("" if name == _NO_NAME else name.hex() for name in names))


class Tickets:
    """The tickets that a master gives to slaves; nothing is kept of them.

    Args:
        now_s: returns the time of a monotonic clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._key = os.urandom(32)

    def give(self, slave: SlaveNames) -> str:
        """Return a ticket for a slave, in hexadecimal digits."""
        expires_ms = int((self._now_s() + TICKET_S) * 1000)
        return _TICKET.pack(expires_ms, self._mac(slave.encode(), expires_ms)).hex()

    def take(self, data: bytes) -> SlaveNames | None:
        """Return the slave of a greeting; None if it is not complete.

        Raises:
            ProtocolError: it is no greeting of this version, or has no ticket that is good.
        """
        if len(data) < GREETING_BYTES:
            return None
        magic, version, size = _HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION or size != _BODY_BYTES:
            raise ProtocolError(
                f"a greeting of version {version} with {size} bytes, expected version {VERSION}"
                f" with {_BODY_BYTES}"
            )
        slave = data[_HEAD.size : _HEAD.size + _SLAVE.size]
        expires_ms, mac = _TICKET.unpack_from(data, _HEAD.size + _SLAVE.size)
        if not hmac.compare_digest(mac, self._mac(slave, expires_ms)):
            raise ProtocolError("its ticket was not given by this process for this slave")
        if self._now_s() * 1000 > expires_ms:
            raise ProtocolError(f"its ticket is older than {TICKET_S:g} s")
        return SlaveNames.decode(slave)

    def _mac(self, slave: bytes, expires_ms: int) -> bytes:
        return hmac.digest(self._key, slave + expires_ms.to_bytes(8, "big", signed=True), "sha256")


def check_process(broker_id: int, incarnation: str, held: str, peer: str) -> None:
    """Refuse a slave whose broker id another process has that is connected.

    Of two copies of a store, each would acknowledge what the other one lacks.

    Args:
        broker_id, incarnation: what the slave says of itself; empty if it names no process.
        held: the incarnation of the connected one; empty if that names no process. Then the slave
            takes its place, as with RocketMQ.
        peer: the address of the connected one.

    Raises:
        ProtocolError: it is another process.
    """
    if held and incarnation != held:
        raise ProtocolError(
            f"it names the broker id {broker_id}, but another process with that id is connected:"
            f" met incarnation {incarnation or 'none'}, expected {held} of {peer}; give each slave"
            " an id of its own. If that process has ended, wait until its connection ends; if two"
            " run on copies of one store, stop the one that should not"
        )


def greeting_of(names: SlaveNames, ticket: str) -> bytes:
    """Return the greeting of a slave.

    Args:
        names: what it says of itself.
        ticket: the one that the master has given for these, in hexadecimal digits.
    """
    return _HEAD.pack(MAGIC, VERSION, _BODY_BYTES) + names.encode() + bytes.fromhex(ticket)


class Introduction:
    """Requests tickets from the master of this slave.

    Args:
        client: sends the requests; it signs them if this broker has an account.
        role: names the master.
        names: returns what this broker says of itself.
    """

    def __init__(self, client: RemotingClient, role: Role, names: Callable[[], SlaveNames]) -> None:
        self._client = client
        self._role = role
        self._names = names

    async def greeting(self, log_address: str) -> bytes:
        """Return the greeting for the master; empty if that one is of RocketMQ, or not reached.

        Args:
            log_address: ``host:port`` to which it will be sent. Empty is returned if that is not
                the port of this master, unless ``haMasterAddress`` chooses it.

        Raises:
            ResponseError: the master refuses the account of this broker.
            ReplicaError: the master is of another broker set, or is none now.
        """
        # Masters never need these.
        from cometmq.protocol.headers.broker_admin import (
            ExchangeBrokerHaInfoRequest,
            ExchangeBrokerHaInfoResponse,
        )

        master, names = self._role.master_address, self._names()
        if not master:
            return b""
        try:
            response = await self._client.call(
                master,
                RequestCode.EXCHANGE_BROKER_HA_INFO,
                ExchangeBrokerHaInfoRequest(log_slave=names.encode().hex()),
                timeout=REQUEST_S,
            )
        except RemotingError:
            # The port of the log may be reached all the same; a master that wants a greeting
            # refuses the connection.
            return b""
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # RocketMQ 4
            return b""
        found = check(response).header(ExchangeBrokerHaInfoResponse)
        if not found.master_ha_address:
            raise ReplicaError(f"{master} is no master now")
        if found.set_id and names.set_id and found.set_id != names.set_id:
            raise ReplicaError(
                f"the master {master} is of the broker set {found.set_id}, expected"
                f" {names.set_id}, to which the store here belongs; the log of another set is not"
                " followed: see the how-to page about failover"
            )
        is_there = self._role.has_fixed_ha_address or found.master_ha_address == log_address
        if found.log_ticket is None or not is_there:
            return b""
        return greeting_of(names, found.log_ticket)
