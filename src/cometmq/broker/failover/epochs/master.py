"""Sends the log of a master to its slaves with epochs, when a controller elects masters.

    greeting of a slave     gets the epochs of this log; the slave truncates its own log
    reports                 as without a controller
    chunk                   lies in one epoch, which its header names

An empty slave begins with the first file of the log, or with the last one if it asks for that.

Source: AutoSwitchHAConnection, RocketMQ 5.3.
"""

from __future__ import annotations

from typing import Protocol

from cometmq.broker.failover.epochs.epoch_file import Epoch, EpochFile
from cometmq.broker.failover.epochs.wire import ChunkHeader, Greeting, MasterEpochs, SlaveMessages
from cometmq.broker.replication.greeting import SlaveNames
from cometmq.broker.replication.master import Master
from cometmq.broker.replication.slave_connection import SlaveConnection
from cometmq.model.errors import ProtocolError


class Leader(Protocol):
    """Keeps the in-sync set by the reports of slaves."""

    def greeted(self, connection: EpochSlaveConnection, greeting: Greeting) -> None:
        """Take the connection of a slave, instead of an older one of the same process.

        Raises:
            ProtocolError: the slave cannot be one of this broker.
        """

    def reported(self, connection: EpochSlaveConnection, slave_id: int) -> None:
        """Take the report of a slave."""

    def disconnected(self, connection: EpochSlaveConnection, slave_id: int) -> None:
        """Forget a connection."""

    def is_in_sync(self, slave_id: int) -> bool:
        """Return whether a slave is a member of the in-sync set."""


class EpochSlaveConnection(SlaveConnection):
    """The connection of one slave.

    Args:
        master: whose slave it is.
        epochs: the epochs of the log.
        leader: keeps the in-sync set.
    """

    def __init__(self, master: Master, epochs: EpochFile, leader: Leader) -> None:
        super().__init__(master)
        self._epochs = epochs
        self._leader = leader
        self._messages = SlaveMessages()
        self._epoch = Epoch(0, 0)
        self._epoch_end = -1
        """The end of the epoch at `sent_to`; at or below `sent_to` if it is not known."""
        self.greeting: Greeting | None = None
        """The greeting of the slave; None before it is received."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the slave."""
        super().connection_lost(exc)
        if self.greeting is not None:
            self._leader.disconnected(self, self.greeting.broker_id)

    def is_in_sync(self, log_end: int) -> bool:
        """Return whether the slave is a member of the in-sync set."""
        return self.greeting is not None and self._leader.is_in_sync(self.greeting.broker_id)

    def _take_names(self, slave: SlaveNames) -> None:
        """Leave that to the greeting with the epochs, which follows."""

    def _has_reported(self) -> None:
        assert self.greeting is not None
        self._leader.reported(self, self.greeting.broker_id)

    def _newest_report(self, data: bytes) -> int | None:
        newest = self._messages.newest(data)
        if self.greeting is None and self._messages.greeting is not None:
            if newest is not None:
                raise ProtocolError("a slave reported before it got the epochs of this log")
            greeting = self._messages.greeting
            if (slave := self.slave) is not None:
                if slave.broker_id != greeting.broker_id:
                    raise ProtocolError(
                        f"it names the broker id {greeting.broker_id}, expected"
                        f" {slave.broker_id}, for which its ticket is"
                    )
                greeting = greeting._replace(incarnation=slave.incarnation)
            self._leader.greeted(self, greeting)
            self.greeting = greeting
            assert self._transport is not None
            self._transport.write(
                MasterEpochs(self._store.written_to, self._epochs.epochs).encode()
            )
        if newest is not None and self._epochs.covering(newest or self._first_offset()) is None:
            raise ProtocolError(
                f"it has the log up to offset {newest}, of which this broker knows no epoch"
            )
        return newest

    def _first_offset(self) -> int:
        if self.greeting is not None and self.greeting.from_last_file:
            return super()._first_offset()
        return self._store.min_log_offset

    def _chunk_size(self, size: int) -> int:
        return max(0, min(size, self._end_of_epoch() - self.sent_to))

    def _header(self, size: int) -> bytes:
        self._end_of_epoch()
        # Not what this broker may lose with the power: readers of the slave must not see it.
        return ChunkHeader(size, self.sent_to, self._epoch, self._store.readable_to).encode()

    def _end_of_epoch(self) -> int:
        """Return where the epoch at `sent_to` ends."""
        if self.sent_to >= self._epoch_end or self._epoch.number != self._epochs.last:
            # None if there were too many epochs since: then the slave gets no chunk any more.
            found = self._epochs.covering(self.sent_to)
            self._epoch, self._epoch_end = found or (self._epoch, -1)
        return self._epoch_end
