"""A job whose tasks write rows in producer sessions, as Spark runs them.

A task gets a further attempt if the one before fails, is killed, or takes long. Then the earlier
one may go on beside it (a zombie). A batch that is finished may be repeated. Each attempt is a
process on a machine of its own, and follows the decision "A producer session is an epoch in the
log, and a repeated task reads back".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cometmq.client import SendStatus
from cometmq.client.filters import Filter
from cometmq.client.library import (
    ClientConnection,
    EncodedSender,
    OpenedSession,
    ProducerSession,
    Pull,
    SessionFencedError,
)
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.property_names import UNIQ_KEY
from cometmq.model.queue import MessageQueue
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.properties import encode_properties
from simulation.history import Opening, Send, SendType
from simulation.kernel import Process
from simulation.machines import EPOCH, OWNER, SESSION, TOPIC

if TYPE_CHECKING:
    from simulation.world import World

PARTITIONS_MAX = 3
ROWS_MAX = 12
ROWS_OF_SEND_MAX = 3
ATTEMPTS_MAX = 3
"""Attempts of a task that run at the same time."""
LOOK_S_MAX = 2.0
"""How often it is decided what happens to a task that is not finished."""
PAUSE_S_MAX = 2.0
"""The longest time for which an attempt sometimes gets no rows."""
TRY_S, DELIVERY_S = 3.0, 12.0
"""The time limits of a request, and of all tries to open a session."""
OPENINGS_MAX = 10
KILLED, ZOMBIE, REPEATED = "task_killed", "task_zombie", "batch_repeated"
JOB_FAULTS = {KILLED, ZOMBIE, REPEATED}
"""The names under which is counted what happens to tasks."""


class Task(NamedTuple):
    """One partition of a batch."""

    batch: int
    partition: int
    rows: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{self.batch}.{self.partition}"


class _FencedError(CometError):
    """A newer attempt has opened the session."""


class _NotOpenError(CometError):
    """A broker is missing, or lags behind."""


class Job:
    """Writes batch after batch while there is load.

    Args:
        world: the simulated cluster.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._attempts = 0
        self._running: dict[asyncio.Task[bool], Process] = {}

    async def run(self) -> None:
        """Write until the load ends, and then what is not finished."""
        batch, tasks = -1, list[Task]()
        while self._world.has_load:
            if tasks and self._chance.below(4) == 0:
                self._count(REPEATED)
            else:
                batch += 1
                tasks = [self._new_task(batch, n) for n in range(1 + self._chance.below(3))]
            await asyncio.gather(*map(self._run_task, tasks))

    def end(self) -> None:
        """End the zombies."""
        for process in self._running.values():
            process.die()

    def _new_task(self, batch: int, partition: int) -> Task:
        count = 1 + self._chance.below(ROWS_MAX)
        task = Task(batch, partition, tuple(f"r{batch}.{partition}.{n}" for n in range(count)))
        began = self._world.note(f"task {task.name} of {count} rows")
        for row in task.rows:
            self._world.history.sends[row] = Send(began, SendType.SESSION)
        return task

    def _count(self, fault: str) -> None:
        self._world.note(fault)
        self._world.history.faults[fault] += 1

    async def _run_task(self, task: Task) -> None:
        """Return when an attempt has finished; others may go on."""
        mine: list[asyncio.Task[bool]] = []
        while True:
            if not mine:
                mine.append(self._begin(task))
            look_s = self._chance.fraction() * LOOK_S_MAX
            await asyncio.wait(mine, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
            done = [attempt for attempt in mine if attempt.done()]
            for attempt in done:
                del self._running[attempt]
            if any(attempt.result() for attempt in done):
                break
            mine = [attempt for attempt in mine if attempt in self._running]
            fate = self._chance.below(4) if mine and self._world.has_load else 0
            if fate == 1 or len(mine) == ATTEMPTS_MAX:
                self._count(KILLED)
                self._running.pop(mine.pop(self._chance.below(len(mine)))).die()
            elif fate == 2:
                self._count(ZOMBIE)
                mine.append(self._begin(task))
        for row in task.rows:
            self._world.history.sends[row].is_acknowledged = True
        self._world.note(f"finished {task.name}")

    def _begin(self, task: Task) -> asyncio.Task[bool]:
        self._attempts += 1
        world = self._world
        process = world.process(f"task-{task.name}-{self._attempts}", world.new_ip())
        attempt = process.spawn(Attempt(world, process, task).run())
        self._running[attempt] = process
        return attempt


class Attempt:
    """One attempt of a task.

    Args:
        world: the simulated cluster.
        process: in which it runs.
        task: what it writes.
    """

    def __init__(self, world: World, process: Process, task: Task) -> None:
        self._world = world
        self._process = process
        self._chance = world.chance
        self._task = task
        self._session = ProducerSession(f"job/{task.partition}", process.name, 0)
        self._queues: list[MessageQueue] = []
        self._acknowledged: set[str] = set()
        self._is_uncertain = False

    async def run(self) -> bool:
        """Write the rows that no attempt has stored; return whether all are acknowledged."""
        settings = ClientSettings(client_ip=self._process.ip, instance_name=self._process.name)
        try:
            async with ClientConnection(self._world.name_servers, settings=settings) as connection:
                await self._write(connection)
        except CometError as problem:
            self._note(f"failed {type(problem).__name__} {problem}")
            return False
        return True

    def _note(self, text: str) -> None:
        self._world.note(f"{self._process.name}: {text}")

    async def _write(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._sender = EncodedSender(connection, "writers")
        await self._opened(0)
        while rows := await self._missing_rows():
            await self._send(rows)
            if not self._is_uncertain:
                break
            await self._opened(self._session.epoch + 1)

    # --- opening and reading back -----------------------------------------------------------------

    async def _opened(self, epoch: int) -> None:
        """Open the session at all brokers, with an epoch; 0 for the first opening."""
        loop, is_new, conflicts = self._world.loop, not epoch, 0
        until_s = loop.now_s + DELIVERY_S
        while True:
            try:
                return await self._open_each(epoch)
            except SessionFencedError as fenced:
                conflicts += 1
                if not is_new or conflicts > OPENINGS_MAX:
                    raise _FencedError(str(fenced)) from None
                epoch = fenced.newest + 1
            except CometError as problem:
                is_old = getattr(problem, "code", 0) == ResponseCode.PRODUCER_BATCH_OLD
                if is_old or loop.now_s > until_s:
                    raise
                await asyncio.sleep(0.1 + self._chance.fraction())

    async def _open_each(self, epoch: int) -> None:
        self._is_uncertain = False
        self._addresses = await self._sender.session_brokers(TOPIC, timeout=TRY_S)
        if not self._addresses:
            raise _NotOpenError("there is no topic yet")
        names = sorted(self._addresses)
        self._ranges: dict[MessageQueue, tuple[int, int]] = {}
        brokers: frozenset[str] = frozenset()
        for broker in names:
            opened = await self._sender.open_session(
                TOPIC,
                self._addresses[broker],
                self._session._replace(epoch=epoch),
                batch=self._task.batch,
                brokers=names,
                timeout=TRY_S,
            )
            epoch = opened.epoch
            self._session = self._session._replace(epoch=epoch)
            if not opened.is_safe or not opened.is_complete:
                raise _NotOpenError(f"{broker} lags behind")
            brokers |= opened.brokers
            self._note_opening(broker, opened)
        if away := brokers - self._addresses.keys():
            raise _NotOpenError(f"rows may be at {sorted(away)}")
        queues = await self._sender.queues(TOPIC, timeout=TRY_S)
        self._queues = [queue for queue in queues if queue in self._ranges]

    def _note_opening(self, broker: str, opened: OpenedSession) -> None:
        name, owner, epoch = self._session
        self._note(f"open {name} {epoch} at {broker} {opened.begins} {opened.ends}")
        self._world.history.openings.append(Opening(name, owner, epoch, broker, opened.ends))
        for number, bounds in enumerate(zip(opened.begins, opened.ends, strict=True)):
            self._ranges[MessageQueue(TOPIC, broker, number)] = bounds

    async def _missing_rows(self) -> list[str]:
        """Return the rows that no attempt has stored, in any order."""
        found: set[str] = set()
        for queue, (begin, end) in self._ranges.items():
            found.update(await self._read(queue, begin, end))
        if lost := self._acknowledged - found:
            self._world.history.failures.append(f"unread: {sorted(lost)} were acknowledged")
        rows = [row for row in self._task.rows if row not in found]
        return sorted(rows, key=lambda _: self._chance.fraction())

    async def _read(self, queue: MessageQueue, begin: int, end: int) -> Iterable[str]:
        found: list[str] = []
        pull = Pull("readers", queue, Filter())
        until_s = self._world.loop.now_s + DELIVERY_S
        address = self._addresses[queue.broker_name]
        while begin < end:
            result = await self._connection.pull(address, pull, QueueOffset(begin), timeout=TRY_S)
            for message in result.messages:
                if message.queue_offset < end:
                    found.append(message.body.decode().rstrip("."))
                begin = int(message.queue_offset) + 1
            if not result.messages:
                if self._world.loop.now_s > until_s:
                    raise _NotOpenError(f"{queue} has no message {begin}: {result.status}")
                await asyncio.sleep(0.2)
        return found

    # --- sending ----------------------------------------------------------------------------------

    async def _send(self, rows: Sequence[str]) -> None:
        """Send rows to queues by chance, in order within each; stop at an uncertain response."""
        sends: dict[MessageQueue, list[Sequence[str]]] = {}
        while rows:
            count = 1 + self._chance.below(ROWS_OF_SEND_MAX)
            queue = self._queues[self._chance.below(len(self._queues))]
            sends.setdefault(queue, []).append(rows[:count])
            rows = rows[count:]
        await asyncio.gather(*(self._send_queued(queue, each) for queue, each in sends.items()))

    async def _send_queued(self, queue: MessageQueue, sends: list[Sequence[str]]) -> None:
        for rows in sends:
            if self._chance.below(4) == 0:
                await asyncio.sleep(self._chance.fraction() * PAUSE_S_MAX)
            if self._is_uncertain:
                return
            session = self._session
            properties = dict(zip((SESSION, OWNER, EPOCH), map(str, session), strict=True))
            items = [
                BatchItem(0, row.encode(), encode_properties({UNIQ_KEY: row} | properties))
                for row in rows
            ]
            try:
                receipt = await self._sender.send(
                    TOPIC, encode_batch(items), queue=queue, session=session, timeout=TRY_S
                )
            except CometError as problem:
                self._note(f"not sent {rows} {type(problem).__name__} {problem}")
                code = problem.code if isinstance(problem, ResponseError) else None
                if code == ResponseCode.PRODUCER_FENCED:
                    raise _FencedError(str(problem)) from None
                self._is_uncertain = True
                return
            self._note(f"sent {rows} {receipt.status.name} {queue} {receipt.queue_offset}")
            if receipt.status is not SendStatus.SEND_OK:
                self._is_uncertain = True
                return
            self._acknowledged.update(rows)
            for row in rows:
                self._world.history.sends[row].is_acknowledged = True
