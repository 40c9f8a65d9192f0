"""The messages between a master and its slaves when a controller elects masters; no input or
output.

    slave to master     greeting := state:i32=1 from_last_file:i16 is_learner:i16 broker_id:i64
                        report   := state:i32=2 log_offset_end:i64
    master to slave     epochs   := state:i32=1 size:i32 log_offset_end:i64 last_epoch:i32 epoch*
                        epoch    := number:i32 start_offset:i64
                        chunk    := state:i32=2 size:i32 log_offset:i64 epoch confirm_offset:i64
                                    bytes of the log; size 0 for a heartbeat

A connection begins with the greeting and, in response, the epochs; reports and chunks follow.
A chunk lies in one epoch. The one that reaches the end of an epoch names the next epoch already,
if the master is a RocketMQ.

Source: AutoSwitchHAConnection and AutoSwitchHAClient, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from cometmq.broker.failover.epochs.epoch_file import ENTRIES_MAX, NO_EPOCH, Epoch, check_epochs
from cometmq.broker.replication.wire import CHUNK_BYTES_MAX
from cometmq.model.errors import ProtocolError

HANDSHAKE: Final = 1
TRANSFER: Final = 2

GREETING: Final = Struct(">ihhq")
REPORT: Final = Struct(">iq")
EPOCHS: Final = Struct(">iiqi")
EPOCH: Final = Struct(">iq")
CHUNK: Final = Struct(">iiqiqq")


class Greeting(NamedTuple):
    """The first bytes of a slave on a connection: who it is."""

    broker_id: int
    """The id that the controller gave it."""
    from_last_file: bool = False
    """Whether an empty slave begins with the last file of the log, instead of the whole log."""
    is_learner: bool = False
    """Whether it never becomes a member of the in-sync set."""
    incarnation: str = ""
    """Its process, as its ticket names it; empty without a ticket. It is not in the message."""

    def encode(self) -> bytes:
        """Return the bytes of the message."""
        return GREETING.pack(HANDSHAKE, self.from_last_file, self.is_learner, self.broker_id)


class MasterEpochs(NamedTuple):
    """The response of a master to a greeting: the epochs of its log."""

    log_end: int
    epochs: list[Epoch]

    def encode(self) -> bytes:
        """Return the bytes of the message."""
        epochs = self.epochs[-ENTRIES_MAX:]
        last = epochs[-1].number if epochs else NO_EPOCH
        head = EPOCHS.pack(HANDSHAKE, EPOCH.size * len(epochs), self.log_end, last)
        return head + b"".join(EPOCH.pack(*epoch) for epoch in epochs)


class ChunkHeader(NamedTuple):
    """The header before bytes of the log."""

    size: int
    log_offset: int
    epoch: Epoch
    confirm_offset: int

    def encode(self) -> bytes:
        """Return the bytes of the header."""
        return CHUNK.pack(TRANSFER, self.size, self.log_offset, *self.epoch, self.confirm_offset)


class SlaveMessages:
    """Takes the messages of a slave out of the bytes received."""

    def __init__(self) -> None:
        self._rest = b""
        self.greeting: Greeting | None = None
        """The first message; None before it is complete."""

    def newest(self, data: bytes) -> int | None:
        """Return the newest report; None if none is complete yet.

        Raises:
            ProtocolError: a message is out of range or out of order.
        """
        data = self._rest + data
        at = 0
        if self.greeting is None:
            if len(data) < GREETING.size:
                self._rest = data
                return None
            self.greeting = _read_greeting(data)
            at = GREETING.size
        newest: int | None = None
        while len(data) - at >= REPORT.size:
            state, offset = REPORT.unpack_from(data, at)
            _expect(state, TRANSFER, "a slave")
            if offset < 0:
                raise ProtocolError(f"a slave reported log offset {offset}, expected 0 or more")
            newest = int(offset)
            at += REPORT.size
        self._rest = data[at:]
        return newest


def _read_greeting(data: bytes) -> Greeting:
    state, from_last_file, is_learner, broker_id = GREETING.unpack_from(data)
    _expect(state, HANDSHAKE, "a slave")
    if broker_id < 1:
        raise ProtocolError(f"a slave named the broker id {broker_id}, expected 1 or more")
    return Greeting(broker_id, from_last_file == 1, is_learner == 1)


def read_epochs(data: bytes | bytearray | memoryview, end: int) -> tuple[MasterEpochs, int] | None:
    """Return the epochs that a master sends first, and their length; None before they are complete.

    Args:
        data: begins with the message.
        end: how many bytes of it were received.

    Raises:
        ProtocolError: it is out of range.
    """
    if end < EPOCHS.size:
        return None
    state, size, log_end, last = EPOCHS.unpack_from(data)
    _expect(state, HANDSHAKE, "the master")
    if log_end < 0 or size % EPOCH.size or not 0 <= size <= EPOCH.size * ENTRIES_MAX:
        raise ProtocolError(
            f"the master sent {size} bytes of epochs for a log of {log_end} bytes, expected at most"
            f" {ENTRIES_MAX} epochs of {EPOCH.size} bytes for a log of 0 or more"
        )
    stop = EPOCHS.size + size
    if end < stop:
        return None
    epochs = [Epoch(*EPOCH.unpack_from(data, at)) for at in range(EPOCHS.size, stop, EPOCH.size)]
    _check(epochs, last)
    return MasterEpochs(log_end, epochs), stop


def _check(epochs: Sequence[Epoch], last: int) -> None:
    found = epochs[-1].number if epochs else NO_EPOCH
    if last != found:
        raise ProtocolError(f"the master named the last epoch {last}, expected {found}, its last")
    try:
        check_epochs(epochs)
    except ValueError as problem:
        raise ProtocolError(f"the epochs of the master: {problem}") from problem


def read_chunk(data: bytes | bytearray, at: int) -> ChunkHeader:
    """Return the header of the chunk at a position.

    Raises:
        ProtocolError: it is out of range.
    """
    state, size, offset, number, start, confirm = CHUNK.unpack_from(data, at)
    _expect(state, TRANSFER, "the master")
    if size == 0 and offset >= -1 and number >= NO_EPOCH:  # -1: the log of the master is empty
        return ChunkHeader(0, offset, Epoch(number, start), confirm)
    if offset < 0 or not 0 < size <= CHUNK_BYTES_MAX:
        raise ProtocolError(
            f"a chunk of {size} bytes at log offset {offset}, expected at most {CHUNK_BYTES_MAX}"
            " at 0 or more"
        )
    if number < 0 or not 0 <= start <= offset + size:
        raise ProtocolError(
            f"a chunk of {size} bytes at log offset {offset} in epoch {number} from {start} on,"
            " expected an epoch of 0 or more that starts before the end of the chunk"
        )
    return ChunkHeader(size, offset, Epoch(number, start), confirm)


def _expect(state: int, expected: int, sender: str) -> None:
    if state != expected:
        raise ProtocolError(f"{sender} is in state {state}, expected {expected}")
