"""Copies the log of the master to a slave.

    greeting   names this slave, with a ticket of the master; not for a master of RocketMQ
    report     what the slave has: right after the connection, after each chunk, and at intervals
    chunk      appended to the log at once; its records are readable when they are whole

The first report leaves the last record out. The master sends that record again, and it is compared:
a master that lost its newest messages with the power, and has written others since, is not
followed. RocketMQ's slaves append the bytes of such a master in the middle of a record.

With synchronous flush a slave reports only what is on its disk. A connection that ends is made
again, at most every `RETRY_S`; each reason why it fails is logged once, until it works again. If
the address of the master changes, the slave connects to the new one at once.

Source: DefaultHAClient, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from cometmq.broker.config import BrokerSettings
from cometmq.broker.replication.greeting import Introduction
from cometmq.broker.replication.wire import HEADER, REPORT, read_header
from cometmq.broker.role import Role
from cometmq.model.errors import CometError, ProtocolError, StoreError
from cometmq.protocol.bodies.broker_admin import HAClientRuntimeInfo
from cometmq.remoting import ConnectError, Supervisor
from cometmq.remoting.client import split_address
from cometmq.remoting.tls import failure_text
from cometmq.store import MessageStore, ReplicaError, SegmentNotReadyError
from cometmq.system.clock import Clock
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    import ssl

    from cometmq.broker.durability.group_commit import GroupCommit

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0
"""Least time between the beginnings of two connections."""
CONNECT_S: Final = 5.0
"""Timeout of a connection."""
RECEIVE_BYTES: Final = 256 * 1024
"""How much is received at a time."""
RATE_S: Final = 5.0


class LogCopy:
    """Keeps the log of a slave equal to the log of its master.

    Args:
        role: whether this broker is a slave, and where its master sends the log.
        store: the log.
        settings: returns the current settings of the broker.
        commit: syncs received bytes to the disk before they are reported; None to report them when
            they are written.
        clock: gives the time at which something was received, for `status`.
    """

    def __init__(
        self,
        role: Role,
        store: MessageStore,
        settings: Callable[[], BrokerSettings],
        *,
        commit: GroupCommit | None,
        clock: Clock,
    ) -> None:
        self.role = role
        self.store = store
        self.settings = settings
        self.commit = commit
        self.clock = clock
        self.tasks = Supervisor("replication")
        self._tls: ssl.SSLContext | None = None
        self._introduction: Introduction | None = None
        self._connection: MasterConnection | None = None
        self._changed = asyncio.Event()
        self._address = ""
        """The master to which the last connection was or is."""
        self._failures = FailureLog(
            log,
            fails="the log is not copied, retrying",
            works="the log is copied again",
            name="master",
        )
        role.on_master(self._master_changed)

    @property
    def uses_tls(self) -> bool:
        """Whether connections to the master use TLS."""
        return self._tls is not None

    def start(
        self, tls: ssl.SSLContext | None = None, introduction: Introduction | None = None
    ) -> None:
        """Connect to the master, now and whenever this broker is a slave.

        Args:
            tls: the context of TLS connections; None for plain ones.
            introduction: requests the greeting from the master; None to send none.
        """
        self._tls = tls
        self._introduction = introduction
        self.tasks.spawn(self._run(), "copy-log")

    async def close(self) -> None:
        """End the connection."""
        await self.tasks.cancel()
        self._disconnect()

    def role_changed(self) -> None:
        """Begin a new connection if there is a master; call it after each change of the role."""
        self._changed.set()
        self._disconnect()

    def _master_changed(self) -> None:
        if self._master_address() != self._address:
            self.role_changed()

    # --- others if a controller elects masters ---------------------------------------------------

    def _master_address(self) -> str:
        """Return where the master sends its log; empty if there is none to follow."""
        return self.role.master_ha_address if self.role.is_slave else ""

    def _connection_to(self, address: str, greeting: bytes) -> MasterConnection:
        return MasterConnection(self, address, greeting)

    # --- connections ------------------------------------------------------------------------------

    def began(self, connection: MasterConnection) -> None:
        """Take a connection that was made; end it if the role has changed meanwhile."""
        self._connection = connection
        if self._changed.is_set():
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close("the address of the master or the role changed")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            next_s = loop.time() + RETRY_S
            address = self._address = self._master_address()
            if not address:
                await self._changed.wait()
                continue
            try:
                await self._copy_from(address)
            except CometError as problem:
                self._failures.failed(address, problem)
            except OSError as problem:
                self._failures.failed(address, ConnectError(failure_text(problem)))
            try:
                async with asyncio.timeout_at(next_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _copy_from(self, address: str) -> None:
        """Copy the log until the connection ends.

        Raises:
            CometError, OSError: why it ended, or could not be made.
        """
        host, port = split_address(address)
        await self.settle()
        greeting = b"" if self._introduction is None else await self._introduction.greeting(address)
        if self._changed.is_set():
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: self._connection_to(address, greeting), host, port, ssl=self._tls
                )
        except TimeoutError:
            raise OSError(f"no connection after {CONNECT_S:g} s") from None
        except ConnectionResetError:
            if not self.uses_tls:
                raise
            raise OSError(
                "closed during the TLS handshake; if the master has no TLS for the log, set"
                " haTlsEnable=false"
            ) from None
        try:
            reason = await connection.ended
        finally:
            connection.close("the broker stops")
            self._connection = None
        if not self._changed.is_set():
            raise ReplicaError(reason)

    async def settle(self) -> None:
        """Bring the log into the state from which a master can continue it.

        Raises:
            StoreError: the disk refused.
        """
        while True:
            behind = self.store.dispatch_backlog_bytes
            try:
                self.store.replica.begin()
            except StoreError:  # after a full disk, records are dispatched a few at a time
                if not 0 < self.store.dispatch_backlog_bytes < behind:
                    raise
                await asyncio.sleep(0)
            else:
                break
        if self.commit is not None:
            problem = await self.commit.sync_error(self.store.written_to)
            if problem is not None:
                raise problem

    def hears_master(self, seconds: float) -> bool:
        """Return whether the master has sent something within this many seconds."""
        connection = self._connection
        return connection is not None and connection.silent_s < seconds

    def works(self, address: str) -> None:
        """Note that the master sends."""
        self._failures.succeeded(address)

    def status(self) -> HAClientRuntimeInfo:
        """Return the state of the connection."""
        found = HAClientRuntimeInfo(master_addr=self._address, max_offset=self.store.written_to)
        connection = self._connection
        if connection is not None:
            found.transferred_byte_in_second = connection.bytes_per_second
            found.last_read_timestamp = connection.read_ms
            found.last_write_timestamp = connection.written_ms
        return found


class MasterConnection(asyncio.BufferedProtocol):
    """The connection to the master.

    Args:
        copy: whose log grows.
        address: ``host:port`` of the master, for messages.
        greeting: sent first; may be empty.
    """

    def __init__(self, copy: LogCopy, address: str, greeting: bytes) -> None:
        self._copy = copy
        self._greeting = greeting
        self._store = copy.store
        self._replica = copy.store.replica
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._taken = 0
        """How many of the bytes in the buffer were appended."""
        self._chunk_left = 0
        """Bytes of the current chunk that are not received yet."""
        self._is_waiting = False
        """Whether the next file of the log is being allocated."""
        self._reported = -1
        self._may_report = True
        """Whether the master takes reports already."""
        self._whole_to = self._replica.received_to
        """The log offset behind the last chunk that is complete."""
        self._compared_to = -1
        """The log offset before which bytes of the last record were compared; -1 if none are."""
        self._is_syncing = False
        self._has_received = False
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection has ended."""
        self.bytes_per_second = 0
        self._bytes = 0
        self._rate_from_s = self._read_s = self._written_s = 0.0
        self.read_ms = self.written_ms = 0

    # --- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report what this slave has."""
        self._transport = cast(asyncio.Transport, transport)
        self._rate_from_s = self._read_s = self._now_s()
        self._copy.began(self)
        if self.ended.done():
            return
        if self._greeting:
            self._transport.write(self._greeting)
        self._greet()
        self._tick()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        reason = f"the master closed the connection{f': {failure_text(exc)}' if exc else ''}"
        if self._compared_to >= 0 and self._has_received:
            reason += (
                f"; it sent nothing from log offset {self._compared_to} on, where the last record"
                " here is: its log ends there, because it lost messages, or begins behind it."
                " Empty the store of the broker that lacks what you need"
            )
        if not self._has_received:
            reason += "; the log of the master says why"
            if not self._copy.uses_tls:
                reason += "; if it has TLS for the log, set haTlsEnable=true here"
        self.close(reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where received bytes go."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Append what was received."""
        self._filled += nbytes
        if not self._has_received:  # a master that refuses this slave sends nothing
            self._has_received = True
            log.info("connected to the master address=%s from=%d", self._address, self._whole_to)
        self._read_s = self._now_s()
        self._bytes += nbytes
        self._take()

    def close(self, reason: str) -> None:
        """Close the connection; nothing is appended after that."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if not self.ended.done():
            self.ended.set_result(reason)

    # --- receiving ------------------------------------------------------------------------------

    def _take(self) -> None:
        """Append the received bytes, as far as the log has a file for them."""
        try:
            self._append_received()
        except SegmentNotReadyError:
            self._wait_for_segment()
        except (StoreError, ProtocolError) as problem:
            self.close(str(problem))
            return
        at = self._taken
        rest = self._filled - at
        if at and rest:
            self._buffer[:rest] = self._buffer[at : self._filled]
        self._filled = rest
        if self._may_report and self._whole_to > self._reported:
            self._acknowledge()

    def _append_received(self) -> None:
        """Append complete headers and all bytes of chunks, and count them as taken."""
        end = self._filled
        at = self._taken = 0
        while True:
            if self._chunk_left == 0:
                header_bytes = self._take_header(at, end)
                if header_bytes == 0:
                    return
                at += header_bytes
            elif at == end:
                return
            else:
                stop = min(end, at + self._chunk_left)
                count = self._append(self._view[at:stop])
                self._chunk_left -= count
                at += count
                if self._chunk_left == 0:
                    self._completed()
            self._taken = at

    def _chunk_begins(self, offset: int, size: int) -> None:
        """Expect a number of bytes for a log offset, or a heartbeat.

        Raises:
            ProtocolError: they are not the bytes of the last record, which is to be compared.
            StoreError: they do not continue the log.
        """
        if self._compared_to < 0:
            self._replica.expect(offset)
        elif offset != self._compared_to:
            raise ProtocolError(
                f"a chunk from log offset {offset} on, expected {self._compared_to}"
            )
        self._chunk_left = size
        if size == 0:
            self._completed()

    def _completed(self) -> None:
        """Note that a chunk or a heartbeat is complete."""
        if self._compared_to >= 0:
            return
        self._whole_to = self._replica.received_to
        self._copy.works(self._address)

    # --- messages: others if a controller elects masters -----------------------------------------

    def _greet(self) -> None:
        """Send the first message."""
        record = self._store.last_record()
        if record is None:
            self._report(self._whole_to)
        else:  # 0 would request the last file, as an empty slave does
            self._compare_from(max(1, self._whole_to - len(record)))

    def _compare_from(self, offset: int) -> None:
        """Request the last record, or its end, to compare it."""
        self._may_report = False
        self._compared_to = offset
        self._report(offset)

    def _take_header(self, at: int, end: int) -> int:
        """Take a header out of the buffer; return its size, 0 if it is not complete.

        Raises:
            ProtocolError: it is out of range.
            StoreError: it does not continue the log.
        """
        if end - at < HEADER.size:
            return 0
        self._chunk_begins(*read_header(self._buffer, at))
        return HEADER.size

    def _append(self, data: memoryview) -> int:
        """Append bytes of a chunk; return how many were taken.

        Raises:
            StoreError: they do not continue the log, or the disk refused.
        """
        if self._compared_to < 0:
            self._replica.append(data)
            return len(data)
        end = self._replica.received_to
        count = min(len(data), end - self._compared_to)
        if self._store.log_bytes(self._compared_to, count) != data[:count]:
            self._differs(end)
        self._compared_to += count
        if self._compared_to == end:
            self._compared_to = -1
            self._may_report = True
            self._is_equal()
        return count

    def _differs(self, end: int) -> None:
        """Refuse the master, whose last record before an offset is another one.

        Raises:
            ReplicaError: always.
        """
        raise ReplicaError(
            f"the record before log offset {end} differs from the master's: one of both logs lost"
            " messages, as with the power, and others were stored in their place since. Find out"
            " which one has what you need; then empty the store of the other broker, so that it"
            " copies the log again"
        )

    def _is_equal(self) -> None:
        """Note that the last record equals the record of the master."""

    def _encoded_report(self, offset: int) -> bytes:
        return REPORT.pack(offset)

    # --- receiving: files -------------------------------------------------------------------------

    def _wait_for_segment(self) -> None:
        """Receive nothing until the next file of the log is allocated."""
        if self._transport is not None and not self._is_waiting:
            self._is_waiting = True
            self._transport.pause_reading()
            self._copy.tasks.spawn(self._continue_with_segment(), "wait-for-file")

    async def _continue_with_segment(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._store.wait_for_segment)
        except StoreError as problem:
            self.close(str(problem))
            return
        finally:
            self._is_waiting = False
        if self._transport is None:
            return
        self._take()
        if self._transport is not None and not self._is_waiting:
            self._transport.resume_reading()

    # --- reports --------------------------------------------------------------------------------

    def _acknowledge(self) -> None:
        """Report the chunks that are complete; with synchronous flush when they are on the disk."""
        commit = self._copy.commit
        if commit is None:
            self._report(self._whole_to)
            return
        end = self._store.written_to  # readers and syncs count whole records only
        if end > self._reported and not self._is_syncing:
            self._is_syncing = True
            commit.wait(end, lambda synced, error: self._synced(end, synced, error))

    def _synced(self, end: int, synced: bool, error: StoreError | None) -> None:
        self._is_syncing = False
        if self._transport is None:
            return
        if error is not None:
            self.close(str(error))
            return
        if synced:
            self._report(end)
        self._acknowledge()  # what was received meanwhile

    def _report(self, offset: int) -> None:
        if self._transport is None:
            return
        self._reported = offset
        self._written_s = self._now_s()
        self.written_ms = self._copy.clock.now_ms()
        self._transport.write(self._encoded_report(offset))

    # --- time -----------------------------------------------------------------------------------

    @property
    def silent_s(self) -> float:
        """How long the master has sent nothing."""
        return self._now_s() - self._read_s if self._has_received else math.inf

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _tick(self) -> None:
        """Report at intervals, and close a silent connection."""
        settings = self._copy.settings()
        now_s = self._now_s()
        limit_s = settings.ha_housekeeping_interval_ms / 1000
        if now_s - self._read_s > limit_s and not self._is_waiting:
            self.close(f"nothing arrived for {limit_s:g} s (haHousekeepingInterval)")
            return
        interval_s = settings.ha_send_heartbeat_interval_ms / 1000
        # Nothing before the first sync has ended: the master would refuse an offset below 0.
        if self._reported >= 0 and self._may_report and now_s - self._written_s >= interval_s:
            self._report(self._reported)
        self.read_ms = self._copy.clock.now_ms() - int((now_s - self._read_s) * 1000)
        if now_s - self._rate_from_s >= RATE_S:
            self.bytes_per_second = int(self._bytes / (now_s - self._rate_from_s))
            self._rate_from_s, self._bytes = now_s, 0
        self._timer = asyncio.get_running_loop().call_later(
            min(1.0, interval_s / 5, limit_s / 5), self._tick
        )
