"""The connection of one slave to its master; a master loads this module for the first one."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq.broker.replication.greeting import GREETING_BYTES, MAGIC
from cometmq.broker.replication.master import Master, Slave
from cometmq.broker.replication.wire import HEADER, Reports
from cometmq.model.address import host_and_port
from cometmq.model.errors import ProtocolError
from cometmq.remoting.tls import HANDSHAKE_BYTE

if TYPE_CHECKING:
    from cometmq.broker.replication.greeting import SlaveNames

FIRST_REPORT_S: Final = 10.0
"""How long a connection has for its first report; RocketMQ's slaves send it after 5 s."""
UNSENT_BYTES_MAX: Final = 1024 * 1024
"""How much of the log waits in the send buffer of a connection at most."""
COLD_BYTES: Final = 8 * 1024 * 1024
"""How much of the log is read into memory at a time."""
RATE_S: Final = 5.0


class SlaveConnection(Slave):
    """The connection of one slave.

    Args:
        master: whose slave it is.
    """

    def __init__(self, master: Master) -> None:
        super().__init__()
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
