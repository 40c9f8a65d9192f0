"""Sends the log of a master to its slaves.

A slave gets new bytes of the log right after they are written, whether they are on the disk of the
master or not. If no send waits for slaves, the bytes of `SHARED_S` share one packet: most of what a
slave costs its master are system calls. Bytes that were written recently, or that are in memory,
are sent out of the mapped log; all others are read into memory in a thread first.

    an empty slave                    begins with the last file of the log
    a slave that reports an offset    continues there
    one that has more than this log   is disconnected

With access control, or TLS for the log, a connection has to begin with a signed greeting, or to
come from an address in ``haUnsignedSlaves``. Connections that have not reported yet do not count as
slaves, whether they are in a TLS handshake or behind it. They have `HANDSHAKE_S` and then
`FIRST_REPORT_S`, and a new one takes the place of the oldest one of the address that has most of
them; so however many a stranger makes, a slave gets in.

Source: DefaultHAService and DefaultHAConnection, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.acknowledgements import Acknowledgements
from cometmq.broker.role import Role
from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError, ProtocolError
from cometmq.remoting import Supervisor
from cometmq.remoting.listener import Listener
from cometmq.remoting.tls import failure_text
from cometmq.store import MessageStore
from cometmq.system.failure_log import RateLimitedLog

if TYPE_CHECKING:
    import ssl

    from cometmq.broker.replication.greeting import SlaveNames, Tickets
    from cometmq.protocol.bodies.broker_admin import HAConnectionRuntimeInfo

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 64
NEWCOMERS_MAX: Final = 64
"""Connections that have not reported yet."""
SHARED_S: Final = 0.002
"""Least time between two packets to a slave for which no send waits."""
HANDSHAKE_S: Final = 10.0
"""Timeout of a TLS handshake."""
CLOSE_S: Final = 0.2
"""How long a stop waits for the end of handshakes."""


class Slave(asyncio.Protocol):
    """The connection of one slave, as far as its master knows it; `SlaveConnection` is one."""

    def __init__(self) -> None:
        self.slave: SlaveNames | None = None
        """The names that the slave has sent with a ticket; None if it has none."""
        self.peer = ""
        self.host = ""
        self.sent_to = 0
        """The log offset of the next byte to send."""
        self.acknowledged_to = -1
        """The log offset up to which the slave has the log."""
        self.bytes_per_second = 0

    def accepted(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        """Take the accepted socket, which has no transport yet, and the address of its peer."""
        raise NotImplementedError

    def send(self) -> None:
        """Send what is there; at most as much as may wait in the buffer, then others run."""
        raise NotImplementedError

    def is_in_sync(self, log_end: int) -> bool:
        """Return whether the slave counts as having the log."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection when the slave has received what was sent."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close the connection at once: what the log has from now on is not for this slave.

        It counts no more: the connection that takes its place may be of the same slave.
        """
        raise NotImplementedError

    def refuse(self, reason: str) -> None:
        """Close the connection at once, and log why."""
        raise NotImplementedError


class Master:
    """Listens for slaves, and sends them the log.

    Args:
        role: only a master has slaves.
        store: whose log it is.
        settings: returns the current settings of the broker.
        connect: makes the side of the master of a connection.
        acknowledgements: the sends that wait for slaves.
    """

    def __init__(
        self,
        role: Role,
        store: MessageStore,
        settings: Callable[[], BrokerSettings],
        *,
        connect: Callable[[Master], Slave],
        acknowledgements: Acknowledgements | None = None,
    ) -> None:
        self.role = role
        self.store = store
        self.settings = settings
        self.slaves: list[Slave] = []
        """The connections that have reported at least once."""
        if acknowledgements is None:
            acknowledgements = Acknowledgements(role, settings, lambda: self.slaves)
        self.acknowledgements = acknowledgements
        self.tasks = Supervisor("replication")
        self._connect = connect
        self._connections: list[Slave] = []
        """All of them, from their accept on."""
        self.set_id: Callable[[], str] = str
        """Returns the broker set of this broker; empty if there is none."""
        self._needs_greeting = False
        self._listener = Listener("slaves", self.accepted)
        self._tls: ssl.SSLContext | None = None
        self._is_scheduled = False
        self._sent_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        # Whoever reaches the port may connect and break off without end.
        self.arrivals = RateLimitedLog(log, "slaves came and went", level=logging.INFO)
        self.refusals = RateLimitedLog(log, "slaves were refused")

    @cached_property
    def tickets(self) -> Tickets:
        """Given to slaves over the port of requests."""
        from cometmq.broker.replication.greeting import Tickets

        return Tickets(lambda: asyncio.get_running_loop().time())

    @property
    def port(self) -> int:
        """The port that is bound; 0 before the start."""
        return self._listener.port

    async def start(
        self,
        address: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        needs_greeting: bool = False,
    ) -> None:
        """Listen for slaves.

        Args:
            address, port: where.
            tls: the context of TLS connections; None for plain ones.
            needs_greeting: whether connections without a signed greeting are refused, except from
                the addresses in ``haUnsignedSlaves``.

        Raises:
            ConfigError: the port cannot be bound.
        """
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._needs_greeting = needs_greeting
        try:
            self._listener.start(address, port, SLAVES_MAX + NEWCOMERS_MAX)
        except OSError as problem:
            raise ConfigError(
                f"cannot listen for slaves on {host_and_port(address, port)}:"
                f" {problem.strerror or problem};"
                " haListenPort chooses another port"
            ) from problem

    def stop_accepting(self) -> None:
        """Accept no more slaves."""
        self._listener.stop()

    async def close(self) -> None:
        """Close the connections of all slaves, also connections that are being accepted."""
        self._is_closed = True
        self.stop_accepting()
        for connection in list(self._connections):
            connection.close()
        await self.tasks.drain(CLOSE_S)
        await self.tasks.cancel()

    def role_changed(self) -> None:
        """Close the connections of a slave; call it after each change of the role."""
        if self.role.is_slave:
            for connection in list(self._connections):
                connection.abort()

    # --- connections ----------------------------------------------------------------------------

    def accepted(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        """Take a connection, and make its TLS handshake; it is bounded from now on."""
        connection = self._connect(self)
        connection.accepted(accepted, address)
        if self._add(connection):
            self.tasks.spawn(self._open(connection, accepted), "open")
        else:
            accepted.close()

    async def _open(self, connection: Slave, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
            )
        except OSError as problem:
            if isinstance(problem, ConnectionResetError) or not self.knows(connection):
                connection.abort()  # the peer has ended it, or it was refused meanwhile
            elif getattr(problem, "reason", "") == "WRONG_VERSION_NUMBER":
                connection.refuse(
                    "it uses no TLS for the log, and this broker does; set haTlsEnable to the same"
                    " value on both"
                )
            else:
                connection.refuse(f"its TLS handshake failed: {failure_text(problem)}")
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def knows(self, connection: Slave) -> bool:
        """Return whether a connection is open, or may be opened."""
        return connection in self._connections

    def _add(self, connection: Slave) -> bool:
        """Add a connection; return False if it is refused."""
        if self._is_closed:
            return False
        if self.role.is_slave:
            self.refusals.add(
                "slave refused, this broker is a slave itself peer=%s", connection.peer
            )
            return False
        newcomers = [one for one in self._connections if one.acknowledged_to < 0]
        if len(newcomers) >= NEWCOMERS_MAX:
            counts = Counter(one.host for one in newcomers)
            crowded = max(counts, key=counts.__getitem__)
            oldest = next(one for one in newcomers if one.host == crowded)
            oldest.refuse(f"{NEWCOMERS_MAX} connections have not reported yet, this is the oldest")
        self._connections.append(connection)
        return True

    def check_greeting(self, connection: Slave) -> None:
        """Check what a connection has begun with.

        Raises:
            ProtocolError: it may not have the log.
        """
        slave = connection.slave
        if slave is not None:
            own = self.set_id()
            if own and slave.set_id and slave.set_id != own:
                raise ProtocolError(
                    f"it is of the broker set {slave.set_id}, expected {own}: the log of another"
                    " set is not followed"
                )
        elif self._needs_greeting and not self._is_trusted(connection.host):
            raise ProtocolError(
                "it sends no signed greeting, which access control or TLS for the log needs; a"
                " slave of CometMQ requests a ticket for it at the port of requests, with the"
                " account in innerClientAuthenticationCredentials. For a slave of RocketMQ add its"
                " address to haUnsignedSlaves"
            )

    def _is_trusted(self, host: str) -> bool:
        try:
            found = ip_address(host)
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found  # of a socket for both kinds
        return any(found in ip_network(allowed) for allowed in self.settings().ha_unsigned_slaves)

    def replace_older(self, connection: Slave) -> None:
        """Close an older connection of the same slave.

        Raises:
            ProtocolError: another process with its broker id is connected.
        """
        from cometmq.broker.replication.greeting import check_process

        slave = connection.slave
        assert slave is not None
        for older in list(self._connections):
            held = older.slave
            if older is connection or held is None or held.broker_id != slave.broker_id:
                continue
            check_process(slave.broker_id, slave.incarnation, held.incarnation, older.peer)
            older.abort()

    def began(self, connection: Slave) -> bool:
        """Send the log to a connection from now on; return False if it is refused."""
        if len(self.slaves) >= SLAVES_MAX:
            unnamed = [one for one in self.slaves if one.slave is None]
            if connection.slave is None or not unnamed:
                connection.refuse(f"{SLAVES_MAX} slaves are connected")
                return False
            unnamed[-1].refuse(f"{SLAVES_MAX} slaves are connected, and a named one is new")
        self.slaves.append(connection)
        self.store.notify_of_writes(self.written)
        return True

    def remove(self, connection: Slave) -> None:
        """Forget a connection that was closed."""
        if connection in self._connections:
            self._connections.remove(connection)
        if connection in self.slaves:
            self.slaves.remove(connection)
        if not self.slaves:
            self.store.notify_of_writes(None)

    def written(self) -> None:
        """Send what was written, when the loop has run what is ready now."""
        if self._is_scheduled:
            return
        self._is_scheduled = True
        loop = self._loop
        assert loop is not None
        due_s = self._sent_s + SHARED_S
        if self.acknowledgements.are_needed() or loop.time() >= due_s:
            loop.call_soon(self._send_all)
        else:
            loop.call_at(due_s, self._send_all)

    def _send_all(self) -> None:
        self._is_scheduled = False
        assert self._loop is not None
        self._sent_s = self._loop.time()
        for connection in list(self.slaves):
            connection.send()

    # --- state ----------------------------------------------------------------------------------

    def status(self) -> list[HAConnectionRuntimeInfo]:
        """Return what is known of each slave."""
        from cometmq.protocol.bodies.broker_admin import HAConnectionRuntimeInfo

        end = self.store.written_to
        return [
            HAConnectionRuntimeInfo(
                addr=slave.peer,
                slave_ack_offset=slave.acknowledged_to,
                diff=end - slave.acknowledged_to,
                in_sync=slave.is_in_sync(end),
                transferred_byte_in_second=slave.bytes_per_second,
                transfer_from_where=slave.sent_to,
            )
            for slave in self.slaves
        ]
