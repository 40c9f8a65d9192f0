"""Producers and brokers that are killed, or lose their power, at any step of transactions.

Each case runs transactions on a whole broker, on a simulated disk and clock: producers prepare,
decide and end them, late, twice or never, are killed and replaced, and answer checks or not. At a
random operation of the disk the broker is killed or the power is cut, often again while it starts.
At the end the system runs on until every transaction is decided or discarded, and the audit finds:

- A committed message is in its queue exactly once, a rolled-back one never.
- One without a decision is checked until the maximum, and then in the topic of discarded ones.
- What was acknowledged is not lost, be it a message or a decision: by a kill never, by a power cut
  not with synchronous flush.
- A consumer that saw a message finds it again at its offset.
- At no start would a RocketMQ broker, which goes by half queue, op queue and their offsets alone,
  check a message whose transaction is over, or one message twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.transactions.half_queue import HalfQueue
from cometmq.broker.transactions.handler import TransactionHandler
from cometmq.model.errors import CometError
from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_DISCARD_TOPIC
from cometmq.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import RpcHeader
from cometmq.protocol.headers.transaction import CheckTransactionStateRequest, EndTransactionRequest
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import RecordError, body_crc, decode_record, split_record
from cometmq.remoting import Request, Response
from cometmq.store import MessageStore
from support.brokers.simulated_broker import ROOT, connect, run_broker
from support.checks.manual_clock import ManualClock
from support.checks.randomness import SeededRandomness
from support.runner.tiers import rounds
from support.stores.power_files import PowerFiles
from support.stores.small_stores import all_messages
from support.wire.request_headers import send_header

CASES_EACH = rounds(test=80, long=100)
LIVES = 3
GROUP, CHECKS_GROUP = "shop", "CID_RMQ_SYS_TRANS"
Queue = tuple[str, int]
QUEUES: list[Queue] = [("orders", 0), ("orders", 1), ("bills", 0)]
UNKNOWN, COMMIT, ROLLBACK = 0, SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK
NEVER = 1_000_000
"""So many checks find no decision: for good."""
INTERVAL_MS, TIMEOUT_MS = 1000, 1500
CHECKS_MAX_MANY, CHECKS_MAX_FEW = 25, 3
"""With many checks every decision comes before the last one."""
LIFE_STEPS, LIFE_TRANSACTIONS_MAX = 60, 12
SETTLED_S = 400.0
CALL_S = 10.0
ENDED = (ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION)
"""Responses to an end; the second says that it comes too late, and that a check decides."""
IN_TRANSACTION = "TRAN_MSG"


@dataclass
class Transaction:
    """One transaction: what its database knows, and what the broker has acknowledged."""

    number: int
    queue: Queue
    body: bytes
    patience: int
    """How many checks find no decision yet."""
    later: int
    """What it is decided to, once it is."""
    delay_level: int
    decision: int = UNKNOWN
    checks: int = 0
    acknowledged: bool = False
    may_be_lost: bool = False
    """Whether a power cut, with asynchronous flush, may have taken it."""
    is_ended: bool = False
    """Whether the broker said that the decision is stored; not if a power cut may have taken it."""
    half: tuple[int, int] | None = None
    """Queue offset and log offset of its half message, as the broker said."""

    @property
    def key(self) -> str:
        return f"tx-{self.number}"

    def decide(self) -> int:
        """Decide it, if it is not; a decision never changes."""
        if self.decision == UNKNOWN:
            self.decision = self.later
        return self.decision


@dataclass
class Plain:
    """A message without a transaction."""

    body: bytes
    queue: Queue
    acknowledged: bool = False
    may_be_lost: bool = False


@dataclass
class Case:
    """One broker's files, and all transactions of one seed."""

    seed: int
    chance: SeededRandomness = field(init=False)
    transactions: list[Transaction] = field(default_factory=list)
    plain: list[Plain] = field(default_factory=list)
    seen: dict[Queue, list[bytes]] = field(default_factory=dict)
    unfinished: list[Transaction] = field(default_factory=list)
    """Decided, and no response to the end came: the producer may send the end again."""
    steps: Counter[str] = field(default_factory=Counter)
    """What the last record of the log was when the broker was gone."""

    def __post_init__(self) -> None:
        self.chance = SeededRandomness(self.seed)
        has_journal = self.chance.below(4) > 0
        self.files = PowerFiles(
            SeededRandomness(self.seed + 1), has_journal=has_journal, keeps_prefixes=True
        )
        self.files.on_write = self._aim
        self.clock = ManualClock()
        self.is_sync = self.chance.below(3) > 0
        self.has_many_checks = self.chance.below(4) > 0
        checks_max = CHECKS_MAX_MANY if self.has_many_checks else CHECKS_MAX_FEW
        self.settings = {
            "flushDiskType": "SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH",
            "defaultTopicQueueNums": "2",
            "messageDelayLevel": "1s 2s",
            "transactionTimeOut": str(TIMEOUT_MS),
            "transactionCheckInterval": str(INTERVAL_MS),
            "transactionCheckMax": str(checks_max),
        }
        self.aimed_at = 0
        """At which op message from now on this life ends; 0 for any operation."""
        self.failures: list[BaseException] = []
        """Of the producers' tasks, while the broker was alive."""

    def note_failure(self, task: asyncio.Task[Any]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not self.files.is_off:
            self.failures.append(problem)

    # --- lives ----------------------------------------------------------------------------------

    def run(self) -> None:
        assert self._live(self._create_topics, cut_in=None)
        for _ in range(LIVES):
            self._live(self._work, cut_in=(20, 80, 300)[self.chance.below(3)])
            while self.chance.below(3) == 0:  # it dies again, mostly while it starts
                self._live(self._work, cut_in=30)
        assert self._live(self._settle, cut_in=None)
        assert self._live(self._audit, cut_in=None)

    def _aim(self, data: bytes) -> None:
        """Let some lives end right after an op message is written, before or after its sync."""
        if self.aimed_at and OP_HALF_TOPIC.encode() in data:
            self.aimed_at -= 1
            if not self.aimed_at:
                self.files.cut_at = self.files.operations + 1 + self.chance.below(3)

    def _live(self, work: Callable[[Broker], Any], *, cut_in: int | None) -> bool:
        if cut_in is not None:
            self.files.cut_at = self.files.operations + 1 + self.chance.below(cut_in)
            self.aimed_at = 0
            if self.chance.below(2):
                self.aimed_at = 1 + self.chance.below(6)
                self.files.cut_at += 1000
        is_whole = run_broker(self.files, self.clock, self.settings, work)
        if self.failures:
            raise self.failures[0]
        self.aimed_at = 0
        if not is_whole:
            self._die()
        return is_whole

    def _die(self) -> None:
        """Let the machine stop, or only the process."""
        if self.chance.below(3):
            self.files.power_on()
            if not self.is_sync:
                self.unfinished.clear()  # its offsets may be those of other messages soon
                self.seen.clear()
                for message in (*self.transactions, *self.plain):
                    message.may_be_lost = True
                for transaction in self.transactions:
                    transaction.is_ended = False
        else:
            self.files.kill()
        self.steps[_step_of(_last_record(self.files))] += 1

    async def _create_topics(self, broker: Broker) -> None:
        producer = Producer(self, broker)
        for topic in dict.fromkeys(topic for topic, _ in QUEUES):
            assert await producer.send_plain((topic, 0)) == ResponseCode.SUCCESS

    async def _work(self, broker: Broker) -> None:
        """Do at random what producers do; the broker dies in the middle, or at the end."""
        self._check_as_rocketmq(broker)
        shop = Shop(self, broker)
        for transaction in self.unfinished:
            shop.spawn(shop.any_producer().end(transaction))
        self.unfinished = []
        begun = 0
        for _ in range(LIFE_STEPS):
            step = self.chance.below(12)
            if step < 5 and begun < LIFE_TRANSACTIONS_MAX:
                begun += 1
                shop.any_producer().begin()
            elif step == 5:
                shop.spawn(shop.any_producer().send_plain(self.any_queue()))
            elif step == 6:
                shop.kill_one()
            elif step == 7:
                self._see(broker)
            await asyncio.sleep(self.chance.below(400) / 1000)
        if self.chance.below(4) == 0:
            self.files.cut_at = None  # this life ends with a stop
            shop.kill_all()
        else:
            self.files.cut_at = self.files.operations + 1
            await asyncio.sleep(3600)

    def any_queue(self) -> Queue:
        return QUEUES[self.chance.below(len(QUEUES))]

    def new_transaction(self) -> Transaction:
        number = len(self.transactions)
        transaction = Transaction(
            number,
            self.any_queue(),
            b"tx-%d-" % number + b"x" * self.chance.below((30, 700)[self.chance.below(2)]),
            patience=(0, 0, 1, 2, NEVER)[self.chance.below(5)],
            later=(COMMIT, COMMIT, ROLLBACK)[self.chance.below(3)],
            delay_level=1 if self.chance.below(10) == 0 else 0,
        )
        self.transactions.append(transaction)
        return transaction

    def _see(self, broker: Broker) -> None:
        """What a consumer was able to receive must not change."""
        for queue in QUEUES:
            found = [message.body for message in all_messages(broker.core.store, *queue)]
            before = self.seen.get(queue, [])
            assert found[: len(before)] == before, f"{queue}: seen messages have changed"
            self.seen[queue] = found

    # --- the end --------------------------------------------------------------------------------

    async def _settle(self, broker: Broker) -> None:
        """Run until no half message is open, with producers that answer every check."""
        self._check_as_rocketmq(broker)
        shop = Shop(self, broker, answers_all=True)
        for transaction in self.unfinished:
            shop.spawn(shop.any_producer().end(transaction))
        store, offsets = broker.core.store, broker.core.offsets
        try:
            async with asyncio.timeout(SETTLED_S):
                while (offsets.committed(CHECKS_GROUP, HALF_TOPIC, 0) or 0) != _end_of(store):
                    await asyncio.sleep(INTERVAL_MS / 1000)
        except TimeoutError:
            raise AssertionError(
                f"half messages are still open after {SETTLED_S:.0f} s: the queue has"
                f" {_end_of(store)}, done are {offsets.committed(CHECKS_GROUP, HALF_TOPIC, 0)}"
            ) from None
        await asyncio.sleep(5.0)  # delayed messages are delivered
        shop.kill_all()

    async def _audit(self, broker: Broker) -> None:
        """Compare what is there, after one more start, with the decisions."""
        self._check_as_rocketmq(broker)
        store = broker.core.store
        self._see(broker)
        delivered: Counter[bytes] = Counter()
        places: dict[bytes, Queue] = {}
        for queue in QUEUES:
            for message in all_messages(store, *queue):
                delivered[message.body] += 1
                places[message.body] = queue
                if IN_TRANSACTION in message.properties:
                    self._audit_committed(store, message)
        discarded = Counter(
            message.body for message in all_messages(store, TRANSACTION_DISCARD_TOPIC)
        )
        for transaction in self.transactions:
            counts = delivered[transaction.body], discarded[transaction.body]
            assert self._is_right(transaction, *counts), (
                f"delivered {counts[0]} times, discarded {counts[1]} times: {transaction}"
            )
            assert places.get(transaction.body, transaction.queue) == transaction.queue
        for plain in self.plain:
            count = delivered[plain.body]
            least = int(plain.acknowledged and not plain.may_be_lost)
            assert least <= count <= 1, f"stored {count} times: {plain}"
        known = {message.body for message in (*self.transactions, *self.plain)}
        assert delivered.keys() | discarded.keys() <= known, "something was never sent"

    def _is_right(self, transaction: Transaction, delivered: int, discarded: int) -> bool:
        must_exist = transaction.acknowledged and not transaction.may_be_lost
        if not must_exist and delivered == discarded == 0:
            return True
        if transaction.decision == UNKNOWN:
            return (delivered, discarded) == (0, 1)
        if discarded and not self.has_many_checks:
            # No check met its decision in time. A commit may still come, and puts it back then.
            if transaction.decision == COMMIT:
                is_once = delivered <= 1 or transaction.delay_level > 0
                return is_once and delivered >= transaction.is_ended
            return (delivered, discarded) == (0, 1)
        if transaction.decision == ROLLBACK:
            return delivered == discarded == 0
        if transaction.delay_level:  # the delivery of delayed messages may repeat after a kill
            return delivered >= 1 and discarded == 0
        return (delivered, discarded) == (1, 0)

    def _audit_committed(self, store: MessageStore, message: StoredMessage) -> None:
        key = message.properties["UNIQ_KEY"]
        assert message.sys_flag & SysFlag.TRANSACTION_MASK == COMMIT, f"{key}: {message.sys_flag}"
        half = _record_at(store, message.prepared_offset)
        assert half is not None, f"{key}: no half message at {message.prepared_offset}"
        assert (half.topic, half.properties["UNIQ_KEY"]) == (HALF_TOPIC, key)
        assert half.body == message.body

    def _check_as_rocketmq(self, broker: Broker) -> None:
        """Find what RocketMQ's check service would take for open, and it is over or twice there."""
        store, offsets = broker.core.store, broker.core.offsets
        store.flush()  # with synchronous flush only what is on the disk is read
        begin = offsets.committed(CHECKS_GROUP, HALF_TOPIC, 0) or 0
        ops_begin = offsets.committed(CHECKS_GROUP, OP_HALF_TOPIC, 0) or 0
        ended = {
            int(text)
            for message in all_messages(store, OP_HALF_TOPIC)
            if message.queue_offset >= ops_begin
            for text in message.body.split(b",")
            if text
        }
        delivered = {m.body for queue in QUEUES for m in all_messages(store, *queue)}
        discarded = {m.body for m in all_messages(store, TRANSACTION_DISCARD_TOPIC)}
        stored = {transaction.body for transaction in self.transactions if transaction.is_ended}
        is_open: dict[bytes, int] = {}
        for half in all_messages(store, HALF_TOPIC):
            offset = int(half.queue_offset)
            if offset >= begin and offset not in ended:
                name = f"half message {offset} of {half.properties['UNIQ_KEY']}"
                known = f"offsets {begin} and {ops_begin}, ended {sorted(ended)}"
                assert half.body not in delivered, f"{name} is delivered and open: {known}"
                # A late commit puts a discarded message back as one that was never checked.
                is_resumed = half.properties.get("TRANSACTION_CHECK_TIMES") == "0"
                is_discarded = half.body in discarded and not is_resumed
                assert not is_discarded, f"{name} is discarded and open: {known}"
                assert half.body not in stored, f"{name} is open, its end was acknowledged: {known}"
                assert half.body not in is_open, f"{name} is open, like a copy of it: {known}"
                is_open[half.body] = offset


def _end_of(store: MessageStore) -> int:
    return store.bounds(HALF_TOPIC, 0)[1]


def _record_at(store: MessageStore, log_offset: int) -> StoredMessage | None:
    data = store.record_at(log_offset)
    return None if data is None else decode_record(data)


def _last_record(files: PowerFiles) -> StoredMessage | None:
    """The last whole record of the log on the disk."""
    last, end = None, 0
    folder = ROOT / "commitlog"
    for entry in files.entries(folder):
        data, base = files.read(folder / entry.name) or b"", int(entry.name)
        if last is not None and base > end + len(data):
            break
        position = 0
        with suppress(RecordError):
            while True:
                parts = split_record(data, position)
                if (parts.log_offset, parts.body_crc) != (base + position, body_crc(parts.body)):
                    return last
                last = decode_record(data, position)
                position += parts.size_bytes
                end = base + position
    return last


PREPARED, PUT_BACK, COMMITTED = "prepared", "put back", "committed"
OP, DISCARDED, ELSE = "op message", "discarded", "another"
STEPS = {PREPARED, PUT_BACK, COMMITTED, OP, ELSE}
"""The last record before a death must be each of these in every hundred cases."""


def _step_of(last: StoredMessage | None) -> str:
    if last is None:
        return ELSE
    if last.topic == HALF_TOPIC:
        return PUT_BACK if "TRANSACTION_CHECK_TIMES" in last.properties else PREPARED
    if last.topic == OP_HALF_TOPIC:
        return OP
    if last.topic == TRANSACTION_DISCARD_TOPIC:
        return DISCARDED
    return COMMITTED if IN_TRANSACTION in last.properties else ELSE


class Shop:
    """The producers of the group at one life of the broker."""

    def __init__(self, case: Case, broker: Broker, *, answers_all: bool = False) -> None:
        self._case = case
        self._broker = broker
        self._answers_all = answers_all
        self._tasks: set[asyncio.Task[Any]] = set()
        self._producers = [self._producer()]
        if case.chance.below(2):
            self._producers.append(self._producer())

    def _producer(self) -> Producer:
        return Producer(self._case, self._broker, answers_all=self._answers_all)

    def any_producer(self) -> Producer:
        return self._producers[self._case.chance.below(len(self._producers))]

    def kill_one(self) -> None:
        """Kill a producer; another one starts later, or at once if there is none left."""
        self.any_producer().kill()
        self._producers = [producer for producer in self._producers if producer.is_alive]
        if not self._producers or self._case.chance.below(2):
            self._producers.append(self._producer())

    def kill_all(self) -> None:
        for producer in self._producers:
            producer.kill()

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._case.note_failure(task)


class Producer:
    """One producer process of the group; all of them share the database."""

    def __init__(self, case: Case, broker: Broker, *, answers_all: bool = False) -> None:
        self._case = case
        self._answers_all = answers_all
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connection = connect(broker, {RequestCode.CHECK_TRANSACTION_STATE: self._check})
        self.is_alive = True
        self._spawn(self._heartbeats())

    def kill(self) -> None:
        self.is_alive = False
        for task in self._tasks:
            task.cancel()
        self._connection.abort()

    def begin(self) -> None:
        """Begin a transaction."""
        self._spawn(self._transact())

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._case.note_failure(task)

    async def _heartbeats(self) -> None:
        body = HeartbeatData(
            client_id=f"producer-{id(self)}", producer_data_set=[ProducerData(group_name=GROUP)]
        ).encode()
        while True:
            self._connection.oneway(RequestCode.HEART_BEAT, RpcHeader(), body)
            await asyncio.sleep(20.0)

    # --- sending --------------------------------------------------------------------------------

    async def send_plain(self, queue: Queue) -> int | None:
        case = self._case
        body = b"plain-%d-" % len(case.plain) + b"x" * case.chance.below(700)
        plain = Plain(body, queue)
        case.plain.append(plain)
        response = await self._send(queue, plain.body, {"UNIQ_KEY": f"plain-{len(case.plain)}"})
        if response is None:
            return None
        plain.acknowledged = response.code == ResponseCode.SUCCESS
        return response.code

    async def _transact(self) -> None:
        """Prepare, decide and end one transaction, at random speed."""
        case = self._case
        transaction = case.new_transaction()
        properties = {
            "UNIQ_KEY": transaction.key,
            "KEYS": transaction.key,
            IN_TRANSACTION: "true",
            "PGROUP": GROUP,
        }
        if transaction.delay_level:
            properties["DELAY"] = str(transaction.delay_level)
        if case.chance.below(4) == 0:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(case.chance.below(4))
        response = await self._send(
            transaction.queue,
            transaction.body,
            properties,
            sys_flag=SysFlag.TRANSACTION_PREPARED,
        )
        if response is None:
            return
        assert response.code == ResponseCode.SUCCESS, f"{transaction.key}: {response!r}"
        transaction.acknowledged = True
        log_offset = int(response.fields["msgId"][16:], 16)
        transaction.half = int(response.fields["queueOffset"]), log_offset
        await self._local_part()
        if transaction.patience == 0:
            transaction.decide()
            await self._local_part()
            await self.end(transaction)

    async def _local_part(self) -> None:
        """Take no time, some time, or so long that checks come first."""
        limit_ms = (1, 200, 3000)[self._case.chance.below(3)]
        await asyncio.sleep(self._case.chance.below(limit_ms) / 1000)

    async def _send(
        self, queue: Queue, body: bytes, properties: dict[str, str], *, sys_flag: int = 0
    ) -> Command | None:
        topic, queue_id = queue
        header = send_header(
            producer_group=GROUP,
            topic=topic,
            default_topic_queue_nums=2,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp=self._case.clock.now_ms(),
            properties=encode_properties(properties).decode(),
        )
        return await self._call(RequestCode.SEND_MESSAGE_V2, header, body)

    async def _call(self, code: int, header: Any, body: bytes = b"") -> Command | None:
        """Send a request; None if the connection is lost before the response."""
        with suppress(CometError):
            return await self._connection.call(code, header, body, timeout=CALL_S)
        return None

    # --- ending ---------------------------------------------------------------------------------

    async def end(self, transaction: Transaction) -> None:
        """Tell the broker the decision, sometimes twice, sometimes without a response."""
        case, half = self._case, transaction.half
        assert half is not None
        case.unfinished.append(transaction)
        header = self._end_header(transaction, *half, is_answer=False)
        if case.chance.below(3) == 0:
            self._connection.oneway(RequestCode.END_TRANSACTION, header)
        else:
            response = await self._call(RequestCode.END_TRANSACTION, header)
            if response is None:
                return
            assert response.code in ENDED, f"{transaction}: {response!r}"
            transaction.is_ended = response.code == ResponseCode.SUCCESS
        if case.chance.below(4) == 0:
            await self._local_part()
            self._connection.oneway(RequestCode.END_TRANSACTION, header)
        if transaction in case.unfinished:
            case.unfinished.remove(transaction)

    def _check(self, request: Request) -> Response | None:
        """Answer a check of the broker with what the database says, if at all."""
        header = request.header(CheckTransactionStateRequest)
        case = self._case
        if case.files.is_off or not self.is_alive:
            return None
        transaction = case.transactions[int((header.msg_id or "").removeprefix("tx-"))]
        transaction.checks += 1
        if transaction.checks > transaction.patience:
            transaction.decide()
        if not self._answers_all and case.chance.below(4) == 0:
            return None
        offsets = header.tran_state_table_offset, header.commit_log_offset
        answer = self._end_header(transaction, *offsets, is_answer=True)
        self._spawn(self._answer(answer))
        return None

    async def _answer(self, answer: EndTransactionRequest) -> None:
        await self._local_part()
        times = 1 + (self._case.chance.below(6) == 0)
        for _ in range(times):
            self._connection.oneway(RequestCode.END_TRANSACTION, answer)

    @staticmethod
    def _end_header(
        transaction: Transaction, queue_offset: int, log_offset: int, *, is_answer: bool
    ) -> EndTransactionRequest:
        return EndTransactionRequest(
            producer_group=GROUP,
            tran_state_table_offset=queue_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=transaction.decision,
            from_transaction_check=is_answer,
            msg_id=transaction.key,
            transaction_id=transaction.key,
            topic=transaction.queue[0],
        )


def cases(first: int, count: int) -> Iterator[Case]:
    """Run cases; a failure names the seed that repeats it."""
    for seed in range(first, first + count):
        case = Case(seed)
        try:
            case.run()
        except (AssertionError, Exception) as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem
        yield case


@pytest.mark.parametrize("first", range(0, rounds(test=80, long=6_000), CASES_EACH))
def test_each_transaction_ends_as_decided_over_kills_and_power_cuts(first: int) -> None:
    met: Counter[str] = Counter()
    for case in cases(first, CASES_EACH):
        met += case.steps
    print(f"the last record before a death: {dict(met)}")
    assert met.keys() >= STEPS, f"no broker died right after {STEPS - met.keys()}"


def test_a_seed_repeats_its_case() -> None:
    first, second = cases(7, 1), cases(7, 1)
    for one, other in zip(first, second, strict=True):
        assert one.files.operations == other.files.operations
        assert one.clock.now_ms() == other.clock.now_ms()
        assert one.transactions == other.transactions


# --- do the cases notice a broker that leaves something out? -------------------------------------

MUTATION_CASES = 1_000


async def no_copy(*_: object) -> None:
    """Find no undecided copy of a half message."""


MUTATIONS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "an op message that a crash has cut off stays missing": (
        HalfQueue,
        "_append_missing",
        lambda _: lambda _: None,
    ),
    "a start does not read what is decided": (
        HalfQueue,
        "_note_decided",
        lambda _: lambda *_: None,
    ),
    "a second decision counts like the first": (
        HalfQueue,
        "is_decided",
        lambda _: lambda *_: False,
    ),
    "a decision is acknowledged before it is on the disk": (
        TransactionHandler,
        "_respond",
        lambda _: lambda *_: Response(),
    ),
    "a late decision is acknowledged, and left to a check": (
        TransactionHandler,
        "_undecided_copy",
        lambda _: no_copy,
    ),
    "an op message is stored before what it is about": (
        MessageStore,
        "append_all",
        lambda append_all: lambda store, messages: append_all(store, messages[::-1])[::-1],
    ),
}
"""What is replaced, and by what, given the original."""


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_cases_notice_a_broker_that_leaves_something_out(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, replaced = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, replaced(getattr(owner, name)))
    with pytest.raises(AssertionError, match=r"seed \d+") as noticed:
        for _ in cases(0, MUTATION_CASES):
            pass
    print(f"{mutation}: noticed by {noticed.value}")
