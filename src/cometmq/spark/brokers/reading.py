"""Reads a range of a queue: pulls ahead in the event loop, passes records to the reading thread.

    loop     pull, pull, pull …  →  pieces of up to a MiB, 8 MiB waiting at most  →  reader

Several pulls are under way at a time. Where the next but one begins is guessed from how many
messages the broker gave last; an answer that begins elsewhere is thrown away and asked for anew.
A broker answers a pull behind the end of a queue, or of a range that has expired, at once and with
the bounds: which tell the one from the other. A replica may keep messages for a shorter time than
its master, and lag behind it: only the master decides that messages have expired, or that a queue
cannot be read.

A stream waits for a broker that is away, as long as its options say: the range is in the
checkpoint, so the batch cannot go on without it.

A broker deletes files of its log first, and corrects the smallest offsets of queues some seconds
later (CleanCommitLogService and CleanConsumeQueueService). Until then a pull passes over what was
deleted as over a hole: it succeeds behind it, or says to go on behind it. So without a filter no
offset is passed over unless the queue's oldest message is there, which shows that nothing at or
behind it was deleted. Holes are legitimate: a compacted topic has many.

Source: PullMessageProcessor, RocketMQ 4.9 and 5.3, for the responses of brokers; PullAPIWrapper and
MQClientAPIImpl.processPullResponse, RocketMQ 5.3, for pulls and static topics.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from cometmq.client.blocking.portal import Portal
from cometmq.client.filters import Filter
from cometmq.client.library import LOGICAL_PREFIX, MASTER_ID, ClientConnection, Pull, QueuePulls
from cometmq.model.errors import CometError, ProtocolError, RemotingError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.pull import PullMessageResponse
from cometmq.protocol.record import QUEUE_ID_AT, QUEUE_OFFSET_AT
from cometmq.protocol.subscription import ALL_TAGS
from cometmq.spark.brokers.retry_policy import AwayError, is_passing
from cometmq.spark.brokers.routes import RouteFinder, queue_of
from cometmq.spark.errors import DataLossError, GoneError, RangeError, SourceError, UnreachableError
from cometmq.spark.offsets import QueueRange
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

HOLD_MS: Final = 1_000
"""How long a broker holds a pull until a message arrives."""
PULL_S: Final = 15.0
"""Timeout of one pull."""
PIECE_BYTES: Final = 1 << 20
AHEAD_BYTES: Final = 8 << 20
PULLS_MAX: Final = 16
"""Pulls of one range that are under way at a time."""
UNDER_WAY_BYTES: Final = 8 << 20
"""What they may bring, going by the last answer; one is always under way."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0
RELEARN: Final = 256
"""After so many answers a whole batch is asked for again: messages may have become smaller."""
SPARE_S: Final = 60.0
"""How much longer than the pump a reader waits, which hears of every end of the pump."""

Pieces = queue.SimpleQueue["bytes | Exception | None"]

_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


_NO_NEWS: Final = frozenset({ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND})
"""These bring no message, also if they say to go on behind a missing file of the consume queue."""

_GONE: Final = frozenset(
    {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER}
)
"""Refusals of a pull that say that the queue is not there to be read."""

_I32, _QUEUE_OFFSET = Struct(">i"), Struct(">q")
_REMOVED: Final = "MESSAGE_WAS_REMOVING"
"""The remark of a response that passes over messages deleted from the log."""


@dataclass(frozen=True, slots=True)
class Read:
    """What to read, and how; see `BrokerSession.read`."""

    range: QueueRange
    filter: Filter
    batch_size: int
    timeout_s: float
    group: str
    away_s: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether a broker that is away gets more time than one that responds."""
        return self.away_s > self.timeout_s


@dataclass(slots=True)
class _Asked:
    """A pull under way."""

    start: int
    count: int
    address: str
    """Of the broker that was asked."""
    learns: bool
    """Whether it asked for a whole batch, to see what the broker gives at once."""
    answer: asyncio.Future[Command]


def read_range(portal: Portal, connection: ClientConnection, read: Read) -> Iterator[bytes]:
    """Give the records of a range; see `BrokerSession.read`."""
    pieces: Pieces = queue.SimpleQueue()
    pump = RangePump(connection, read, pieces)
    task = portal.call(pump.start)
    try:
        while (piece := _next(pieces, read)) is not None:
            if isinstance(piece, Exception):
                raise piece
            if piece:
                portal.soon(pump.taken, len(piece))
                yield piece
    finally:
        portal.soon(task.cancel)


def _next(pieces: Pieces, read: Read) -> bytes | Exception | None:
    timeout_s = read.timeout_s + SPARE_S
    try:
        return pieces.get(timeout=timeout_s)
    except queue.Empty:
        where = f"{read.range}: no data received"
        raise UnreachableError(f"{where} in {timeout_s:g} s") from None


class RangePump:
    """Pulls one range, in the loop.

    Args:
        connection: to the servers.
        read: what to read.
        pieces: gets the records; at the end None, or the error that ended it.
        clock: measures how long the broker did not respond.
    """

    def __init__(
        self, connection: ClientConnection, read: Read, pieces: Pieces, clock: Clock | None = None
    ) -> None:
        self._clock = clock or Clock()
        self._connection = connection
        self._read = read
        self._wanted = read.range
        self._guesses = read.filter.expression == ALL_TAGS
        self._is_static = read.range.key.broker.startswith(LOGICAL_PREFIX)
        self._pieces = pieces
        self._pulls = pulls_of(connection, read)
        self._position = read.range.start
        self._window: deque[_Asked] = deque()
        self._step: int | None = None
        self._answers = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._answer_bytes = 0
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._addresses: tuple[str, ...] = ()
        self._replicas: Mapping[int, str] = {}
        self._heeds = True
        self._last: Exception | str = "no request was sent yet"

    def start(self) -> asyncio.Task[None]:
        """Begin pulling; the task is done when the range is."""
        return asyncio.get_running_loop().create_task(self._run(), name=f"read {self._wanted.key}")

    def taken(self, size_bytes: int) -> None:
        """The reader has taken a piece: there is room for more."""
        self._waiting_bytes -= size_bytes
        self._room.set()

    @property
    def is_full(self) -> bool:
        """Whether as much waits to be taken as may."""
        return self._waiting_bytes > AHEAD_BYTES

    async def _run(self) -> None:
        try:
            await self._pull_all()
            self._hand_over()
            self._pieces.put(None)
        except asyncio.CancelledError:
            self._pieces.put(SourceError(f"{self._wanted}: the session was closed under a reader"))
            raise
        except Exception as error:
            self._hand_over()  # what came before it is as good as ever
            self._pieces.put(error)
        finally:
            self._drop_window()

    async def _pull_all(self) -> None:
        now = self._clock.monotonic
        while self._position < self._wanted.end:
            began_s, pause_s, responding_s = now(), PAUSE_S, 0.0
            is_away = False
            while True:
                if self.is_full:
                    full_s = now()
                    await self._until_room()
                    began_s += now() - full_s  # the reader was slow, not the broker
                step_s = now()
                if await self._advance(waits=pause_s > PAUSE_S):
                    break
                self._drop_window()
                is_away = self._look_whether_away(is_away)
                left_s = self._left_s(now() - began_s, responding_s)
                if left_s <= 0:
                    raise self._too_late(now() - began_s)
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                responding_s += 0.0 if is_away else now() - step_s
            if is_away and self._read.waits:
                log.warning("the broker is there again: %s", self._wanted)

    def _look_whether_away(self, was_away: bool) -> bool:
        """Return whether no broker of the queue responds, and say so in the log if that is new."""
        is_away = isinstance(self._last, RemotingError)
        if self._read.waits and is_away:
            if not was_away:
                log.warning("the broker is away, the task waits: %s: %s", self._wanted, self._last)
            if self._pieces.empty():
                self._pieces.put(b"")  # so that the reader goes on waiting
        return is_away

    def _left_s(self, waited_s: float, responding_s: float) -> float:
        """Return how long to wait still.

        Args:
            waited_s: the time since the range was last brought further.
            responding_s: the part of it in which a broker responded.
        """
        read = self._read
        limit_s = max(read.timeout_s, read.away_s)
        return min(read.timeout_s - responding_s, limit_s - waited_s)

    async def _advance(self, *, waits: bool) -> bool:
        """Take the next answer; False if it brought the range no further."""
        address = ""
        try:
            if not self._addresses:
                await self._find()
            self._fill(waits=waits)
            asked = self._window.popleft()
            address = asked.address
            answer = await asked.answer
            if self._passes_over(answer) and not await self._is_hole(asked, answer):
                return False
            return self._take(asked, answer)
        except CometError as error:
            if isinstance(error, SourceError):
                raise
            self._failed(error, address)
            return False

    def _failed(self, error: CometError, address: str) -> None:
        """Note a failure that may pass, and ask another broker next time.

        Args:
            error: the failure.
            address: of the broker that refused; empty if none was asked yet.
        """
        if is_passing(error):
            self._last = error
            self._ask_another()
        elif self._is_replica(address):
            self._ask_master(f"a replica, {address}, refused: {error}")
        else:
            raise self._refused(error) from None

    def _refused(self, error: CometError) -> SourceError:
        code = error.code if isinstance(error, ResponseError) else None
        if code in _GONE:
            return GoneError(f"{self._wanted}: no longer readable: {error}")
        if code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return SourceError(
                f"{self._wanted}: the broker knows no group {self._read.group} and creates none: "
                "name one with rocketmq.group"
            )
        return SourceError(f"{self._wanted}: refused at {self._position}: {error}")

    async def _find(self) -> None:
        """Learn who has the queue now."""
        routes = await RouteFinder(self._connection).find([self._wanted.key])
        if routes.away:
            raise AwayError(routes.away[self._wanted.key])
        if routes.gone:
            raise GoneError(f"{self._wanted}: no longer readable: {routes.gone[self._wanted.key]}")
        self._addresses = routes.addresses[self._wanted.key]
        self._replicas = routes.replicas[self._wanted.key]

    def _ask_another(self) -> None:
        """Go on with the next replica, and find out who there is once there is none left."""
        self._addresses = self._addresses[1:]
        self._heeds = False

    def _is_replica(self, address: str) -> bool:
        return bool(address) and address != self._replicas.get(MASTER_ID)

    def _ask_master(self, why: str) -> None:
        """Go on with the master alone, whose word counts; without one, find out who there is."""
        master = self._replicas.get(MASTER_ID)
        self._addresses = (master,) if master else ()
        self._heeds = False
        self._last = AwayError(f"{why}; the master of {self._wanted.key.broker} did not respond")

    def _heed(self, suggested: int) -> None:
        """Go on with the replica that a broker suggests, unless one has failed before."""
        address = self._replicas.get(suggested)
        if self._heeds and address and address != self._addresses[0]:
            others = [each for each in self._addresses if each != address]
            self._addresses = (address, *others)

    def _too_late(self, waited_s: float) -> SourceError:
        where = f"{self._wanted}: nothing came at {self._position} for {waited_s:.0f} s"
        if isinstance(self._last, Exception):
            return UnreachableError(f"{where}, last attempt: {self._last}")
        return RangeError(f"{where}: {self._last}")

    # --- asking -------------------------------------------------------------------------------

    def _fill(self, *, waits: bool) -> None:
        """Have as many pulls under way as makes sense."""
        most = self._most() if self._step and not waits else 1
        last = self._window[-1] if self._window else None
        start = last.start + last.count if last else self._position
        while len(self._window) < most and start < self._wanted.end:
            count = self._step or self._read.batch_size
            if self._guesses:
                count = min(count, self._wanted.end - start)
            answer = self._pulls.request(self._addresses[0], start, count, holds=waits)
            address = self._addresses[0]
            self._window.append(_Asked(start, count, address, self._step is None, answer))
            start += count

    def _most(self) -> int:
        return max(1, min(PULLS_MAX, UNDER_WAY_BYTES // max(self._answer_bytes, 1)))

    def _drop_window(self) -> None:
        for asked in self._window:
            if not asked.answer.cancel() and not asked.answer.cancelled():
                asked.answer.exception()
        self._window.clear()

    # --- taking -------------------------------------------------------------------------------

    def _take(self, asked: _Asked, answer: Command) -> bool:
        if answer.code not in _ANSWERS:
            raise ResponseError(answer.code, answer.remark or "")
        header = answer.header(PullMessageResponse)
        found = answer.code == ResponseCode.SUCCESS
        if not found and header.min_offset > self._position:
            return self._expired(header, asked.address)
        next_offset = header.next_begin_offset
        if answer.code in _NO_NEWS or next_offset <= self._position:
            return self._short(header)
        if found:
            self._keep(self._as_known(answer.body, header))
            self._heed(header.suggest_which_broker_id)
        self._learn(asked, next_offset - self._position)
        self._position = next_offset
        if self._window and self._window[0].start != next_offset:
            self._drop_window()
        return True

    def _passes_over(self, answer: Command) -> bool:
        """Whether a response passes over offsets that no filter explains.

        Queues of static topics have holes where they moved to another broker.
        """
        if self._is_static:
            return False
        if answer.code == ResponseCode.SUCCESS:
            return self._guesses and _first_offset(answer.body, 0) > self._position
        if answer.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
            return False
        if not self._guesses and answer.remark != _REMOVED:
            return False
        header = answer.header(PullMessageResponse)
        return header.min_offset <= self._position < header.next_begin_offset

    async def _is_hole(self, asked: _Asked, answer: Command) -> bool:
        """Whether nothing was deleted: the queue's oldest message is there."""
        if self._is_replica(asked.address):
            self._ask_master(f"a replica, {asked.address}, has no message at {self._position}")
            return False
        oldest = answer.header(PullMessageResponse).min_offset
        unfiltered = pulls_of(self._connection, replace(self._read, filter=Filter()))
        first = await unfiltered.request(asked.address, oldest, 1, holds=False)
        if first.code not in _ANSWERS:
            raise ResponseError(first.code, first.remark or "")
        if first.code == ResponseCode.SUCCESS:
            next_offset = first.header(PullMessageResponse).next_begin_offset
            if next_offset == oldest + 1 or _first_offset(first.body, oldest) <= oldest:
                return True
        self._last = (
            f"messages from {self._position} on were deleted, although the queue begins at {oldest}"
        )
        return False

    def _as_known(self, body: bytes, header: PullMessageResponse) -> bytes:
        """Give records the numbers that the topic knows them by."""
        if header.offset_delta is None:
            return body
        return renumbered(body, self._wanted.key.queue_id, header.offset_delta)

    def _learn(self, asked: _Asked, step: int) -> None:
        """Guess how many messages the next answers will have."""
        if not self._guesses:
            return
        if step < asked.count or asked.learns:
            self._step = min(step, self._read.batch_size)
        self._answers += 1
        if self._answers % RELEARN == 0:
            self._step = None

    def _short(self, header: PullMessageResponse) -> bool:
        """The queue does not reach here, or not yet, at whoever was asked."""
        self._last = f"the queue holds offsets {header.min_offset} to {header.max_offset}"
        self._ask_another()
        return False

    def _expired(self, header: PullMessageResponse, address: str) -> bool:
        if self._is_replica(address):
            held = f"offsets {header.min_offset} to {header.max_offset}"
            self._ask_master(f"a replica, {address}, holds {held}")
            return False
        raise DataLossError(
            f"{self._wanted}: messages from {self._position} on have expired, "
            f"the queue holds offsets {header.min_offset} to {header.max_offset}"
        )

    # --- handing over -------------------------------------------------------------------------

    def _keep(self, body: bytes) -> None:
        self._parts.append(body)
        self._parts_bytes += len(body)
        self._answer_bytes = len(body)
        if self._parts_bytes >= PIECE_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._parts:
            piece = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts, self._parts_bytes = [], 0
            self._waiting_bytes += len(piece)
            self._pieces.put(piece)

    async def _until_room(self) -> None:
        while self.is_full:
            self._room.clear()
            await self._room.wait()


def _first_offset(records: bytes, default: int) -> int:
    """Return the queue offset of the first record, the default where none is whole."""
    if len(records) < QUEUE_OFFSET_AT + _QUEUE_OFFSET.size:
        return default
    offset: int = _QUEUE_OFFSET.unpack_from(records, QUEUE_OFFSET_AT)[0]
    return offset


def pulls_of(connection: ClientConnection, read: Read) -> QueuePulls:
    """Return the pulls of a range's queue."""
    pull = Pull(
        group=read.group,
        queue=queue_of(read.range.key),
        wanted=read.filter,
        max_messages=read.batch_size,
        hold_ms=HOLD_MS,
    )
    return QueuePulls(connection, pull, timeout=PULL_S)


def renumbered(records: bytes, queue_id: int, offset_delta: int) -> bytes:
    """Return the records of a static topic with the queue and the offsets of the topic.

    Its queues move between brokers, and records keep the numbers of the broker that stored them.
    Brokers say with each answer how far the two lie apart.

    Raises:
        ProtocolError: the bytes are no records that stand back to back.
    """
    changed = bytearray(records)
    position = 0
    while position < len(changed):
        size = _I32.unpack_from(changed, position)[0] if position + 4 <= len(changed) else 0
        if size < QUEUE_OFFSET_AT + _QUEUE_OFFSET.size or position + size > len(changed):
            raise ProtocolError(f"at byte {position} of {len(changed)}: no whole record begins")
        _I32.pack_into(changed, position + QUEUE_ID_AT, queue_id)
        place = position + QUEUE_OFFSET_AT
        offset = _QUEUE_OFFSET.unpack_from(changed, place)[0]
        _QUEUE_OFFSET.pack_into(changed, place, offset + offset_delta)
        position += size
    return bytes(changed)
