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
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.acknowledgements import Acknowledgements
from cometmq.broker.replication.greeting import (
    GREETING_BYTES,
    MAGIC,
    SlaveNames,
    Tickets,
    check_process,
)
from cometmq.broker.replication.wire import HEADER, Reports
from cometmq.broker.role import Role
from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError, ProtocolError
from cometmq.protocol.bodies.broker_admin import HAConnectionRuntimeInfo
from cometmq.remoting import Supervisor
from cometmq.remoting.listener import Listener
from cometmq.remoting.tls import HANDSHAKE_BYTE, failure_text
from cometmq.store import MessageStore
from cometmq.system.failure_log import RateLimitedLog

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 64
NEWCOMERS_MAX: Final = 64
"""Connections that have not reported yet."""
FIRST_REPORT_S: Final = 10.0
"""How long a connection has for its first report; RocketMQ's slaves send it after 5 s."""
UNSENT_BYTES_MAX: Final = 1024 * 1024
"""How much of the log waits in the send buffer of a connection at most."""
COLD_BYTES: Final = 8 * 1024 * 1024
"""How much of the log is read into memory at a time."""
SHARED_S: Final = 0.002
"""Least time between two packets to a slave for which no send waits."""
RATE_S: Final = 5.0
HANDSHAKE_S: Final = 10.0
"""Timeout of a TLS handshake."""
CLOSE_S: Final = 0.2
"""How long a stop waits for the end of handshakes."""


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
        connect: Callable[[Master], SlaveConnection] | None = None,
        acknowledgements: Acknowledgements | None = None,
    ) -> None:
        self.role = role
        self.store = store
        self.settings = settings
        self.slaves: list[SlaveConnection] = []
        """The connections that have reported at least once."""
        if acknowledgements is None:
            acknowledgements = Acknowledgements(role, settings, lambda: self.slaves)
        self.acknowledgements = acknowledgements
        self.tasks = Supervisor("replication")
        self._connect = connect or SlaveConnection
        self._connections: list[SlaveConnection] = []
        """All of them, from their accept on."""
        self.tickets = Tickets(lambda: asyncio.get_running_loop().time())
        """Given to slaves over the port of requests."""
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

    async def _open(self, connection: SlaveConnection, accepted: socket.socket) -> None:
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

    def knows(self, connection: SlaveConnection) -> bool:
        """Return whether a connection is open, or may be opened."""
        return connection in self._connections

    def _add(self, connection: SlaveConnection) -> bool:
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

    def check_greeting(self, connection: SlaveConnection) -> None:
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

    def replace_older(self, connection: SlaveConnection) -> None:
        """Close an older connection of the same slave.

        Raises:
            ProtocolError: another process with its broker id is connected.
        """
        slave = connection.slave
        assert slave is not None
        for older in list(self._connections):
            held = older.slave
            if older is connection or held is None or held.broker_id != slave.broker_id:
                continue
            check_process(slave.broker_id, slave.incarnation, held.incarnation, older.peer)
            older.abort()

    def began(self, connection: SlaveConnection) -> bool:
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

    def remove(self, connection: SlaveConnection) -> None:
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


class SlaveConnection(asyncio.Protocol):
    """The connection of one slave.

    Args:
        master: whose slave it is.
    """

    def __init__(self, master: Master) -> None:
        self._master = master
        self._store = master.store
        self._socket: socket.socket | None = None
        """The accepted one, before there is a transport."""
        self._transport: asyncio.Transport | None = None
        self._reports = Reports()
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_reading = False
        self._is_scheduled = False
        self._has_warned = False
        self._head = b""
        """The first bytes, until it is known what they are."""
        self._is_greeted = False
        self._made_s = 0.0
        self.slave: SlaveNames | None = None
        """The names that the slave has sent with a ticket; None if it has none."""
        self.peer = ""
        self.host = ""
        self.sent_to = 0
        """The log offset of the next byte to send."""
        self.acknowledged_to = -1
        """The log offset up to which the slave has the log."""
        self.bytes_per_second = 0
        self._bytes = self._bytes_before = 0
        self._rate_from_s = self._written_s = self._read_s = 0.0

    def accepted(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        """Take the accepted socket, which has no transport yet, and the address of its peer."""
        self._socket = accepted
        self.host = address[0]
        self.peer = host_and_port(*address[:2])

    # --- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first report."""
        self._socket = None
        self._transport = cast(asyncio.Transport, transport)
        if not self._master.knows(self):  # aborted meanwhile
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._made_s = self._rate_from_s = self._written_s = self._read_s = self._now_s()
        self._tick()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the slave."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._master.remove(self)
        if self.acknowledged_to >= 0:
            self._master.arrivals.add(
                "slave disconnected peer=%s acknowledged=%d", self.peer, self.acknowledged_to
            )

    def data_received(self, data: bytes) -> None:
        """Take the reports of the slave."""
        try:
            if not self._is_greeted:
                data = self._greeted(data)
            reported = self._newest_report(data) if data else None
        except ProtocolError as problem:
            self.refuse(str(problem))
            return
        if reported is None:
            return
        self._read_s = self._now_s()  # single bytes keep no connection
        end = self._store.written_to
        if reported > end:
            self.refuse(
                f"it has the log up to offset {reported}, expected at most {end}, the end of this"
                " log; empty the store of the slave, or of the broker that lost messages"
            )
            return
        if self.acknowledged_to < 0 and not self._begin(reported):
            return
        self.acknowledged_to = reported
        self._has_reported()

    def pause_writing(self) -> None:
        """Wait until the slave has received most of what was sent."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Send again."""
        self._is_paused = False
        self.send()

    def close(self) -> None:
        """Close the connection when the slave has received what was sent."""
        if self._transport is not None:
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once: what the log has from now on is not for this slave.

        It counts no more: the connection that takes its place may be of the same slave.
        """
        self._master.remove(self)
        if self._transport is not None:
            self._transport.abort()
        elif self._socket is not None:  # ends the handshake; asyncio does not take it to be closed
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket = None

    def refuse(self, reason: str) -> None:
        """Close the connection at once, and log why."""
        self._master.refusals.add("slave disconnected peer=%s: %s", self.peer, reason)
        self.abort()

    def _greeted(self, data: bytes) -> bytes:
        """Take the greeting; return the bytes behind it, none before it is complete.

        Raises:
            ProtocolError: the slave may not have the log.
        """
        self._head += data
        if self._head[0] == HANDSHAKE_BYTE:
            raise ProtocolError(
                "it uses TLS for the log, and this broker does not; set haTlsEnable to the same"
                " value on both"
            )
        if MAGIC.startswith(self._head[: len(MAGIC)]):
            self.slave = self._master.tickets.take(self._head)
            if self.slave is None:
                return b""
        self._master.check_greeting(self)
        self._is_greeted = True
        if self.slave is None:
            return self._head
        self._take_names(self.slave)
        return self._head[GREETING_BYTES:]

    # --- others if a controller elects masters ----------------------------------------------------

    def _take_names(self, slave: SlaveNames) -> None:
        """Take what the slave has said of itself.

        Raises:
            ProtocolError: another process with its broker id is connected.
        """
        self._master.replace_older(self)

    def is_in_sync(self, log_end: int) -> bool:
        """Return whether the slave counts as having the log."""
        return log_end - self.acknowledged_to < self._master.settings().ha_slave_fallbehind_max

    def _has_reported(self) -> None:
        """End the waits of sends that the slave has now."""
        self._master.acknowledgements.reported()

    def _newest_report(self, data: bytes) -> int | None:
        """Return the newest report in received bytes; None if none is complete yet.

        Raises:
            ProtocolError: the bytes are no messages of a slave.
        """
        return self._reports.newest(data)

    def _first_offset(self) -> int:
        """Return where an empty slave begins."""
        return self._store.file_start(self._store.written_to)

    def _chunk_size(self, size: int) -> int:
        """Return how many of ``size`` bytes from `sent_to` on share one chunk; 0 to disconnect."""
        return size

    def _header(self, size: int) -> bytes:
        """Return what precedes the next ``size`` bytes of the log."""
        return HEADER.pack(self.sent_to, size)

    # --- sending --------------------------------------------------------------------------------

    def _begin(self, reported: int) -> bool:
        if not self._master.began(self):
            return False
        end = self._store.written_to
        self.sent_to = reported or self._first_offset()
        self._master.arrivals.add(
            "slave connected peer=%s from=%d end=%d", self.peer, self.sent_to, end
        )
        self._beat()
        self._schedule()
        return True

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        self.send()

    def send(self) -> None:
        """Send what is there; at most as much as may wait in the buffer, then others run."""
        transport = self._transport
        if transport is None or self._is_paused or self._is_reading or transport.is_closing():
            return
        store, size_max = self._store, self._master.settings().ha_transfer_batch_size
        parts: list[bytes | memoryview] = []
        start, left = self.sent_to, UNSENT_BYTES_MAX
        while left > 0:
            data = store.log_bytes(self.sent_to, left)
            if data is None:
                break
            read = store.cold_log_bytes(self.sent_to, self.sent_to + len(data))
            if read is not None:
                self._is_reading = True
                self._master.tasks.spawn(self._read(), "read-log")
                break
            left -= len(data)
            while data:
                size = self._chunk_size(min(size_max, len(data)))
                if size <= 0:
                    self.refuse(f"it cannot have the log from offset {self.sent_to} on")
                    return
                parts += self._header(size), data[:size]
                self.sent_to += size
                data = data[size:]
        if not parts:
            self._warn_if_deleted()
            return
        self._bytes += self.sent_to - start
        self._written_s = self._now_s()
        transport.write(b"".join(parts))
        if left <= 0 and not self._is_paused:
            self._schedule()

    async def _read(self) -> None:
        """Read the next bytes of the log into memory, then send."""
        loop = asyncio.get_running_loop()
        try:
            read = self._store.cold_log_bytes(self.sent_to, self.sent_to + COLD_BYTES)
            if read is not None:
                await loop.run_in_executor(None, read)
        except OSError as problem:
            self.refuse(f"the log cannot be read: {problem}")
            return
        finally:
            self._is_reading = False
        self.send()

    def _warn_if_deleted(self) -> None:
        if self._has_warned or self.sent_to >= self._store.min_log_offset or self._is_reading:
            return
        self._has_warned = True
        self._master.refusals.add(
            "slave needs deleted messages, empty its store and start it again peer=%s"
            " needs=%d first=%d",
            *(self.peer, self.sent_to, self._store.min_log_offset),
        )

    # --- time -----------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _tick(self) -> None:
        """Close a silent connection, send a heartbeat; at short intervals."""
        settings = self._master.settings()
        now_s = self._now_s()
        limit_s = settings.ha_housekeeping_interval_ms / 1000
        if self.acknowledged_to < 0 and now_s - self._made_s > FIRST_REPORT_S:
            self.refuse(f"it has reported nothing for {FIRST_REPORT_S:g} s")
            return
        if now_s - self._read_s > limit_s:
            self.refuse(f"nothing arrived for {limit_s:g} s (haHousekeepingInterval)")
            return
        if self.acknowledged_to >= 0:
            self._beat()
        if now_s - self._rate_from_s >= RATE_S:
            passed_s, self._rate_from_s = now_s - self._rate_from_s, now_s
            self.bytes_per_second = int((self._bytes - self._bytes_before) / passed_s)
            self._bytes_before = self._bytes
        interval_s = min(1.0, settings.ha_send_heartbeat_interval_ms / 5000, limit_s / 5)
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._tick)

    def _beat(self) -> None:
        """Send a heartbeat if nothing was sent for a while."""
        interval_s = self._master.settings().ha_send_heartbeat_interval_ms / 1000
        now_s = self._now_s()
        transport = self._transport
        if transport is None or self._is_paused or transport.is_closing():
            return
        if now_s - self._written_s >= interval_s:
            self._written_s = now_s
            transport.write(self._header(0))
