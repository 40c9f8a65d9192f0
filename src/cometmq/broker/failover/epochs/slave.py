"""Copies the log of an elected master, after records that the master does not have are removed.

    greeting    what this slave is; at once
    epochs      those of the master: the log here is truncated to the common point
    report      what this slave has then; RocketMQ's slaves send their first one after 5 s
    chunk       appended, with its epoch

RocketMQ 5.3 gives a master no epoch of its own if nothing was written in the one before. Then logs
may differ in the last epoch of the master. So it sends the last record before the common point
again; unless that is the record here, the whole epoch is copied again. So it is if the common point
is inside a record.

A master that does not know the newest epoch of this log is refused: it was elected before the
one that wrote it. A log without a common epoch is left as it is; an operator has to empty it.

A log without epochs was written before a controller elected masters. It is continued if its master
has it all, too, from before the first election, and the last records are equal. Otherwise it is
left as it is: perhaps no other broker has those messages.

Source: AutoSwitchHAClient, RocketMQ 5.3, which obeys an older master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.broker.config import BrokerSettings
from cometmq.broker.failover.epochs.epoch_file import (
    UNKNOWN_EPOCH,
    Common,
    Epoch,
    EpochFile,
    common_point,
)
from cometmq.broker.failover.epochs.wire import (
    CHUNK,
    REPORT,
    TRANSFER,
    ChunkHeader,
    Greeting,
    MasterEpochs,
    read_chunk,
    read_epochs,
)
from cometmq.broker.replication.slave import LogCopy, MasterConnection
from cometmq.broker.role import Role
from cometmq.model.errors import ProtocolError
from cometmq.store import MessageStore, NoRecordBeginsError, ReplicaError
from cometmq.system.clock import Clock

if TYPE_CHECKING:
    from cometmq.broker.durability.group_commit import GroupCommit

log = logging.getLogger(__name__)


class EpochLogCopy(LogCopy):
    """Keeps the log of a slave equal to the log of the master of an epoch.

    Args:
        role, store, settings, commit, clock: see `LogCopy`.
        epochs: the epochs of the log.
        before_truncation: called with the new end of the log before that is truncated; what it
            raises prevents that.
    """

    def __init__(
        self,
        role: Role,
        store: MessageStore,
        settings: Callable[[], BrokerSettings],
        epochs: EpochFile,
        *,
        commit: GroupCommit | None,
        clock: Clock,
        before_truncation: Callable[[int], object],
    ) -> None:
        super().__init__(role, store, settings, commit=commit, clock=clock)
        self.epochs = epochs
        self.before_truncation = before_truncation
        self.own_id = 0
        self._followed = ""

    def follow(self, own_id: int, address: str) -> None:
        """Copy the log from an address; an empty one ends the copy.

        Args:
            own_id: the id that the controller gave to this broker.
            address: ``host:port`` at which the elected master sends its log.
        """
        self.own_id = own_id
        if address != self._followed:
            self._followed = address
            self.role_changed()

    def _master_address(self) -> str:
        return self._followed

    def _connection_to(self, address: str, greeting: bytes) -> MasterConnection:
        return EpochMasterConnection(self, address, greeting)

    async def settle(self) -> None:
        """Bring the log into the state from which a master can continue or truncate it.

        Raises:
            StoreError: the disk refused.
        """
        await super().settle()
        # So that a truncation, which waits for the disk, is short.
        await asyncio.get_running_loop().run_in_executor(None, self.store.write_out)


class EpochMasterConnection(MasterConnection):
    """The connection to the master.

    Args:
        copy: whose log grows.
        address: ``host:port`` of the master, for messages.
        greeting: sent first; may be empty.
    """

    def __init__(self, copy: EpochLogCopy, address: str, greeting: bytes) -> None:
        super().__init__(copy, address, greeting)
        self._epochs = copy.epochs
        self._own_id = copy.own_id
        self._before_truncation = copy.before_truncation
        self._may_report = False
        self._has_joined = False
        """Whether the epochs of the master were received."""
        self._copied_from: int | None = 0
        """The offset from which the log is copied anew if last records differ; None to leave it."""
        self._master_epochs: list[Epoch] = []
        self._chunk: ChunkHeader | None = None
        """The header of the current chunk."""

    def _greet(self) -> None:
        assert self._transport is not None
        settings = self._copy.settings()
        from_last_file = settings.sync_from_last_file and self._whole_to == 0
        self._transport.write(
            Greeting(self._own_id, from_last_file, settings.async_learner).encode()
        )

    def _encoded_report(self, offset: int) -> bytes:
        return REPORT.pack(TRANSFER, offset)

    def _take_header(self, at: int, end: int) -> int:
        if not self._has_joined:
            found = read_epochs(self._view[at:end], end - at)
            if found is None:
                return 0
            self._join(found[0])
            return found[1]
        if end - at < CHUNK.size:
            return 0
        header = read_chunk(self._buffer, at)
        self._check_epoch(header)
        self._chunk = header
        if self._compared_to < 0 and header.size == 0 and self._replica.received_to == 0:
            self._completed()  # where an empty log begins is known with the first bytes
        else:
            self._chunk_begins(header.log_offset, header.size)
        return CHUNK.size

    # --- the log of the master --------------------------------------------------------------------

    def _join(self, master: MasterEpochs) -> None:
        """Truncate the log to the point up to which it equals the log of the master.

        Raises:
            ReplicaError: there is no such point, or this log is newer.
            StoreError: the log cannot be truncated there, or the disk refused.
        """
        own, end = self._epochs.epochs, self._replica.received_to
        if own and end == 0:
            self._epochs.keep([])
            own = []
        has_epochs = bool(own) or end == 0
        if not has_epochs:  # not in the file before the last record was compared
            own = [Epoch(UNKNOWN_EPOCH, 0)]
        last = master.epochs[-1].number if master.epochs else -1
        if last < self._epochs.last:
            raise ReplicaError(
                f"the master knows epochs up to {last}, expected {self._epochs.last}, the newest of"
                " the log here: it is not the master any more, or does not know yet that it is"
            )
        if own:
            common = common_point(own, end, master.epochs, master.log_end)
            if common is None:
                raise ReplicaError(
                    f"the log here has no epoch in common with the master: met {_texts(own)},"
                    f" expected one of {_texts(master.epochs)}; empty the store, so that the log is"
                    " copied again"
                )
            if common.point < end and not has_epochs:
                raise ReplicaError(
                    f"the log here has no epochs and ends at {end}, expected at most"
                    f" {common.point}, the end of the master's at the first election; empty the"
                    " store, so that the log is copied again"
                )
            if common.point < end:
                self._truncate_to(common)
            if has_epochs:
                self._epochs.keep(common.epochs)
        self._master_epochs = master.epochs
        self._whole_to = self._replica.received_to
        self._has_joined = True
        if has_epochs:
            self._note_joined()
        last_record = self._store.last_record() if own else None
        if last_record is not None:
            self._copied_from = master.epochs[-1].start if has_epochs else None
            if (start := self._whole_to - len(last_record)) >= (self._copied_from or 0):
                self._compare_from(start)
                return
        self._note_joined()
        self._may_report = True

    def _note_joined(self) -> None:
        """Note the epochs of the log here: a member of the in-sync set has that of its master."""
        self._note(*(epoch for epoch in self._master_epochs if epoch.start <= self._whole_to))

    def _differs(self, end: int) -> None:
        if self._copied_from is None:
            raise ReplicaError(
                f"the record before log offset {end} differs from the master's, and the log"
                " here has no epochs; empty the store, so that the log is copied again"
            )
        self._truncate(self._copied_from)
        raise ReplicaError(
            f"the record before log offset {end} differs from the master's, though both have"
            f" the same epoch there; the log is copied again from {self._copied_from} on"
        )

    def _is_equal(self) -> None:
        self._note_joined()

    def _truncate_to(self, common: Common) -> None:
        """Truncate the log to a common point, or to the start of its epoch if no record ends there.

        Raises:
            StoreError: the log cannot be truncated there either, or the disk refused.
        """
        try:
            self._truncate(common.point)
        except NoRecordBeginsError as problem:
            if not common.epochs:
                raise
            start = common.epochs[-1].start
            log.warning("the log is copied again from %d on: %s", start, problem)
            self._truncate(start)

    def _truncate(self, point: int) -> None:
        """Truncate the log; confirmed records that the master lacks are set aside before.

        That is done here, though it may take seconds: meanwhile nothing of the master may come.
        """
        self._store.truncate_log(point, self._before_truncation)

    def _check_epoch(self, header: ChunkHeader) -> None:
        """Note the epoch in which the next bytes were written.

        Raises:
            ProtocolError: it is older than the last one; or it is new, and begins before these
                bytes, though a master begins an epoch at or behind what it has sent. Then it is not
                the master any more, and its log is another one now.
            StoreError: the disk refused.
        """
        if self._compared_to >= 0:
            return  # those bytes are here already, and may be older
        epoch, last = header.epoch, self._epochs.last
        if epoch.number < last and header.size:
            raise ProtocolError(f"a chunk of epoch {epoch.number}, expected {last} or more")
        is_new = epoch.number > last and epoch not in self._master_epochs
        if is_new and epoch.start < header.log_offset:
            raise ProtocolError(
                f"a chunk from log offset {header.log_offset} on in epoch {epoch.number}, which"
                f" begins at {epoch.start}; expected it to begin at or behind the end of what this"
                " master has sent"
            )
        if epoch.start <= header.log_offset:
            self._note_all_to(epoch)

    def _note_all_to(self, epoch: Epoch) -> None:
        """Add an epoch of the master, and earlier epochs in which it has written nothing."""
        if epoch.number > self._epochs.last:
            older = (
                known
                for known in self._master_epochs
                if known.number < epoch.number and known.start <= epoch.start
            )
            self._note(*older, epoch)

    def _note(self, *epochs: Epoch) -> None:
        try:
            self._epochs.received(*epochs)
        except ValueError as problem:
            raise ProtocolError(f"an epoch of the master: {problem}") from problem

    def _completed(self) -> None:
        super()._completed()
        if self._compared_to >= 0:
            return
        header = self._chunk
        assert header is not None
        if header.size:  # RocketMQ names the next epoch with the last bytes of one
            self._note_all_to(header.epoch)
        self._store.confirm(min(header.confirm_offset, self._store.written_to))


def _texts(epochs: list[Epoch]) -> str:
    """Return the last epochs of a list as they are in the epoch file."""
    return ", ".join(f"{epoch.number}-{epoch.start}" for epoch in epochs[-5:]) or "none"
