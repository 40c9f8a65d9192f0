"""A whole broker on a disk that fails, fills up or hangs, on both event loops."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cometmq.broker.app import SETTINGS, Broker
from cometmq.broker.pulling.long_polling import HeldPull
from cometmq.broker.transactions.half_message import half_properties
from cometmq.model.errors import CometError, ConfigError, StoreError
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.protocol import fastjson
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.consumer import ConsumerSendMsgBackRequest
from cometmq.protocol.headers.transaction import EndTransactionRequest
from cometmq.protocol.record import decode_messages
from cometmq.remoting import RemotingClient, RemotingServer, check
from cometmq.remoting.ports import FAST_PORT_GAP, free_broker_port
from cometmq.store import Appended, MessageStore, StoreSettings
from cometmq.system.configuration import load
from cometmq.system.files import DiskUsage
from cometmq.system.rocketmq_keys import BROKER_KEYS
from support.checks.randomness import SeededRandomness
from support.checks.waiting import until
from support.runner.tiers import rounds
from support.stores.faulty_files import PAGE_BYTES, Content, FaultyFiles
from support.stores.small_stores import all_messages, put
from support.wire.request_headers import pull_header, send_header

BOTH_LOOPS = True
SYNC_S = (0.0, 0.001, 0.005, 0.02, 0.1, 0.25)
"""How long syncs of a slow disk take."""
STOP_S = 60.0
"""Ends what hangs."""


class Disk(FaultyFiles):
    """A disk whose syncs can be made slow, or to hang, but not for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()
        self.is_fast = threading.Event()
        self.is_fast.set()
        self.durations: SeededRandomness | None = None
        """Draws how long each sync takes while the disk is slow."""
        self.slow_syncs = 0
        """How many slow syncs have begun or ended: an odd number while one goes on."""

    def refuse_sync(self) -> None:
        self.go_on.wait(60)
        if not self.is_fast.is_set() and self.durations is not None:
            self.slow_syncs += 1
            self.is_fast.wait(SYNC_S[self.durations.below(len(SYNC_S))])
            self.slow_syncs += 1
        super().refuse_sync()

    def copy_after_power_cut(self, root: Path, target: Path, seed: int) -> FaultyFiles:
        """Copy what the disk has if the power fails now; return the disk of the copy.

        A checkpoint is copied before that of which it says that it is on the disk.
        """
        chance = SeededRandomness(seed)
        paths = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
        for path in sorted(
            paths, key=lambda path: ("commitlog" in path.parts, path in self.contents)
        ):
            copy = target / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            content = self.contents.get(path)
            copy.write_bytes(_survivor(content, chance) if content else path.read_bytes())
        disk = FaultyFiles()
        disk.boots = self.boots + 1
        return disk


def _survivor(content: Content, chance: SeededRandomness) -> bytes:
    """What was synced of a file, and some pages that the kernel has written meanwhile."""
    written, data = content.written(), bytearray(content.durable)
    for start in range(0, len(data), PAGE_BYTES):
        if chance.below(2):
            data[start : start + PAGE_BYTES] = written[start : start + PAGE_BYTES]
    return bytes(data)


@dataclasses.dataclass
class Running:
    """A broker, its disk, and a client."""

    broker: Broker
    disk: Disk
    client: RemotingClient

    async def send(self, body: bytes, *, topic: str = "t", timeout: float = 60) -> Command:
        properties = "UNIQ_KEY\x01u\x02WAIT\x01true\x02"
        header = send_header(topic=topic, default_topic_queue_nums=1, properties=properties)
        code = RequestCode.SEND_MESSAGE_V2
        return await self.client.call(self.broker.address, code, header, body, timeout=timeout)

    async def pull(self, *, offset: int = 0, hold_ms: int = 0, timeout: float = 60) -> Command:
        header = pull_header(offset, hold_ms=hold_ms)
        code = RequestCode.PULL_MESSAGE
        return await self.client.call(self.broker.address, code, header, timeout=timeout)

    async def bodies(self) -> list[bytes]:
        found: list[bytes] = []
        while (answer := await self.pull(offset=len(found))).code == 0:
            found += [message.body for message in decode_messages(answer.body)]
        return found


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Running] = []

    async def run(*, room_bytes: int | None = None, **settings: str) -> Running:
        running = Running(made_broker(tmp_path, disk := Disk(), **settings), disk, RemotingClient())
        disk.room_bytes = room_bytes
        made.append(running)
        await running.broker.start()
        return running

    yield run
    for running in made:
        running.disk.go_on.set()
        await running.broker.stop()
        await running.client.close()


@pytest.fixture
async def guest() -> AsyncIterator[Callable[[], RemotingClient]]:
    """Makes further clients."""
    made: list[RemotingClient] = []

    def make() -> RemotingClient:
        made.append(RemotingClient())
        return made[-1]

    yield make
    for client in made:
        await client.close()


def made_broker(folder: Path, disk: Disk, **settings: str) -> Broker:
    small = {
        "mappedFileSizeCommitLog": str(2**18),
        "mappedFileSizeConsumeQueue": "20000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "20000",
        "bindAddress": "127.0.0.1",
        "storePathRootDir": str(folder / "store"),
    }
    small |= {"listenPort": str(free_broker_port())} | settings
    return Broker(load(SETTINGS, known_keys=BROKER_KEYS, command_line=small), files=disk)


# --- the disk -----------------------------------------------------------------------------------


async def test_a_failed_sync_ends_all_acknowledging_and_says_why(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(flushIntervalCommitLog="1", flushIntervalConsumeQueue="1")
    for number in range(3):
        assert (await running.send(b"%d" % number)).code == 0
    running.disk.fail_sync = True
    sends = [asyncio.create_task(running.send(b"lost %d" % number)) for number in range(20)]
    answers = await asyncio.gather(*sends)

    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert all("the disk is gone" in (answer.remark or "") for answer in answers)
    running.disk.fail_sync = False  # what the failed sync was for may be lost: it stays so
    late = await running.send(b"too late")
    assert late.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the disk is gone" in (late.remark or "")
    for _ in range(20):
        assert (await running.pull()).code == 0
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert 1 <= len(errors) <= 5, errors
    began = time.monotonic()
    await running.broker.stop()
    assert time.monotonic() - began < STOP_S


async def test_a_full_disk_refuses_sends_until_there_is_room(start: Start) -> None:
    """By the share of the disk that is used, looked at by the clock."""
    running = await start(cleanResourceInterval="20")
    assert (await running.send(b"before")).code == 0
    running.disk.disk = DiskUsage(used_bytes=96, available_bytes=4)
    refused = await send_until(running, lambda answer: answer.code != 0)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "full" in (refused.remark or "")
    assert refused.fields["MSG_REGION"] == "DefaultRegion"
    kept = len(await running.bodies())

    running.disk.disk = DiskUsage(used_bytes=50, available_bytes=50)
    await send_until(running, lambda answer: answer.code == 0)
    assert len(await running.bodies()) == kept + 1


async def send_until(running: Running, is_it: Callable[[Command], bool]) -> Command:
    async with asyncio.timeout(60):
        while True:
            answer = await running.send(b"x")
            if is_it(answer):
                return answer
            await asyncio.sleep(0.01)


async def test_a_disk_without_blocks_refuses_sends_until_there_are_some(start: Start) -> None:
    """By what the disk says when a file is made."""
    running = await start()
    running.disk.room_bytes = 100_000
    sent: list[bytes] = []
    while (answer := await running.send(b"%d " % len(sent) * 2000)).code == 0:
        sent.append(b"%d " % len(sent) * 2000)
        assert len(sent) < 1000
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "No space left" in (answer.remark or "")
    assert (await running.send(b"again" * 2000)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert await running.bodies() == sent

    running.disk.room_bytes = None
    assert (await running.send(b"room again")).code == 0
    assert (await running.bodies())[-1] == b"room again"


async def test_a_disk_that_is_full_at_the_start_holds_up_transactions_and_sends_but_no_pull(
    start: Start, tmp_path: Path
) -> None:
    """A power cut has cut off the op message of a commit; it is stored before anything else."""
    running = await start()
    assert (await running.send(b"before")).code == 0
    await running.broker.stop()
    half = committed_without_op(running.broker.configuration[StoreSettings])
    shutil.rmtree(tmp_path / "store" / "consumequeue" / "t" / "1")
    (tmp_path / "store" / "abort").write_bytes(b"1\n")

    again = await start(room_bytes=0, cleanResourceInterval="20")
    header = EndTransactionRequest(
        producer_group="g",
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.log_offset,
        commit_or_rollback=8,
        msg_id="u",
    )
    code = RequestCode.END_TRANSACTION
    assert await again.bodies() == [b"before"]
    for answer, why in (
        (await again.send(b"early"), "of a transaction must be stored first"),
        (await again.client.call(again.broker.address, code, header, timeout=60), "not known yet"),
    ):
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert why in (answer.remark or "")

    again.disk.room_bytes = None
    await send_until(again, lambda answer: answer.code == 0)
    assert (await again.client.call(again.broker.address, code, header, timeout=60)).code == 0
    store = again.broker.core.store
    assert (store.bounds("t", 1), store.bounds(OP_HALF_TOPIC, 0)) == ((0, 1), (0, 1))


def committed_without_op(settings: StoreSettings) -> Appended:
    """Store a half message and what it became in queue 1, as a power cut leaves them."""
    store = MessageStore(settings)
    store.open()
    properties = half_properties("t", 1, {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "u"})
    half = put(store, b"paid", HALF_TOPIC, 0, properties)
    put(store, b"paid", "t", 1, properties, sys_flag=8, prepared_offset=half.log_offset)
    store.flush()
    store.abandon()
    return half


async def test_a_sync_that_hangs_holds_up_nobody_but_those_who_wait_for_it(start: Start) -> None:
    running = await start(syncFlushTimeout="5000")
    assert (await running.send(b"synced")).code == 0
    assert await running.bodies() == [b"synced"]  # the group is written down by now
    running.disk.go_on.clear()
    waiting = asyncio.create_task(running.send(b"not synced"))
    await asyncio.wait([waiting], timeout=0.2)
    assert await running.bodies() == [b"synced"]  # a consumer must not see what may be lost
    held = asyncio.create_task(running.pull(offset=1, hold_ms=60_000))
    assert not running.disk.go_on.is_set()

    late = await waiting
    assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert late.fields["queueOffset"] == "1"
    assert not held.done()
    running.disk.go_on.set()
    (message,) = decode_messages((await held).body)
    assert message.body == b"not synced"
    assert (await running.send(b"synced again")).code == 0


@pytest.mark.parametrize("seed", range(rounds(test=1, long=20)))
async def test_a_slow_disk_acknowledges_and_shows_nothing_early(
    start: Start, tmp_path: Path, seed: int
) -> None:
    """Whenever the power fails: what was acknowledged is there, and what a consumer has seen."""
    print(f"seed {seed}")
    senders, sends_each, cuts_max = 8, rounds(test=12, long=30), rounds(test=4, long=12)
    running = await start(syncFlushTimeout="100", flushIntervalConsumeQueue="50")
    disk = running.disk
    acknowledged: set[bytes] = set()
    seen: list[bytes] = []
    codes: list[int] = []
    cuts: list[tuple[Path, FaultyFiles, set[bytes]]] = []
    changed = asyncio.Event()
    disk.durations = SeededRandomness(seed)
    disk.is_fast.clear()

    async def send(sender: int) -> None:
        for number in range(sends_each):
            body = b"%d-%d" % (sender, number)
            answer = await running.send(body)
            codes.append(answer.code)
            if answer.code == ResponseCode.SUCCESS:
                acknowledged.add(body)
            changed.set()

    async def consume() -> None:
        while len(seen) < senders * sends_each:
            answer = await running.pull(offset=len(seen), hold_ms=60_000)
            seen.extend(message.body for message in decode_messages(answer.body))
            changed.set()

    async def cut_power() -> None:
        for number in range(cuts_max):
            await changed.wait()
            changed.clear()
            folder = tmp_path / f"cut-{number}"
            promised = acknowledged | set(seen)
            copied = disk.copy_after_power_cut(tmp_path / "store", folder, seed * 100 + number)
            cuts.append((folder, copied, promised))

    consuming = asyncio.create_task(consume())
    sending = [asyncio.create_task(send(sender)) for sender in range(senders)]
    cutting = asyncio.create_task(cut_power())
    is_served = False
    while not all(task.done() for task in sending):
        before = disk.slow_syncs
        await running.pull(timeout=STOP_S)
        is_served |= before % 2 == 1 and disk.slow_syncs == before
    await asyncio.gather(*sending, cutting)
    assert is_served, "no request was served while a sync went on"
    disk.is_fast.set()
    await asyncio.wait_for(consuming, STOP_S)

    assert set(codes) <= {ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT}
    assert sorted(seen) == sorted(set(seen)), "stored twice"
    assert disk.slow_syncs // 2 < len(codes), "sends share syncs"
    for folder, files, promised in cuts:
        settings = StoreSettings(
            root=folder,
            commit_log_file_bytes=2**18,
            consume_queue_file_bytes=20_000,
            index_slots=100,
            index_entries=20_000,
        )
        store = MessageStore(settings, files=files)
        store.open()
        kept = {message.body for message in all_messages(store, "t")}
        assert promised <= kept <= set(seen), f"{promised - kept} are lost"
        store.abandon()


# --- memory that is handed out ------------------------------------------------------------------


async def test_an_answer_on_its_way_outlives_the_file_it_comes_from(
    start: Start, guest: Callable[[], RemotingClient]
) -> None:
    """The client reads nothing while the log's files are deleted; then it gets every byte."""
    running = await start(mappedFileSizeCommitLog=str(2**20), fileReservedTime="0")
    body = bytes(range(256)) * 3500
    for _ in range(6):
        assert (await running.send(body)).code == 0
    deaf = guest()
    connection = await deaf.connection(running.broker.address)
    assert connection._transport is not None
    connection._transport.pause_reading()
    slow = Running(running.broker, running.disk, deaf)
    pulls = [asyncio.create_task(slow.pull(offset=number % 4, timeout=60)) for number in range(12)]
    serving = running.broker.listening.servers[0]._connections
    await until(lambda: any(connection._writing_paused for connection in serving), timeout=60)
    store = running.broker.core.store
    store.write_out()
    now_ms = running.broker.core.clock.now_ms()
    assert store.clean(now_ms + 10_000, expired_at_any_hour=True) >= 4
    for number in range(8):  # what is written now must not show in the answers
        assert (await running.send(bytes([number]) * 900_000)).code == 0
    assert any(connection._writing_paused for connection in serving)
    connection._transport.resume_reading()

    answers = await asyncio.gather(*pulls)
    early = [answer for answer in answers if answer.code == 0]
    assert early
    for answer in early:
        (message,) = decode_messages(answer.body)
        assert message.body == body
    late = {answer.code for answer in answers if answer.code != 0}
    assert late <= {ResponseCode.PULL_OFFSET_MOVED}


# --- a log that is truncated ---------------------------------------------------------------------


async def test_offsets_are_on_the_disk_before_a_truncation_that_was_refused_at_first(
    start: Start,
) -> None:
    """After a crash the group would skip what the new master stores in place of the messages."""
    running = await start()
    assert (await running.send(b"x")).code == 0
    core, disk = running.broker.core, running.disk
    core.offsets.commit("g", "t", 0, 1)
    core.persist_offsets()
    disk.fail_sync = True
    with pytest.raises(StoreError, match="the disk is gone"):
        running.broker.life.before_truncation(0)
    disk.fail_sync = False
    running.broker.life.before_truncation(0)
    stored = (core.configuration[StoreSettings].root / "config/consumerOffset.json").read_bytes()
    assert fastjson.loads(stored)["offsetTable"]["t@g"] == {"0": 0}


# --- starting and stopping ----------------------------------------------------------------------


async def test_a_broker_that_could_not_start_lets_go_of_everything(
    tmp_path: Path, start: Start
) -> None:
    taken = RemotingServer({})
    port = free_broker_port()
    await taken.start("127.0.0.1", port - FAST_PORT_GAP)
    broker = made_broker(tmp_path, Disk(), listenPort=str(port))
    with pytest.raises(ConfigError, match=str(port - FAST_PORT_GAP)):
        await broker.start()
    await broker.stop()
    await broker.stop()
    await taken.stop(0.1)

    assert not (tmp_path / "store" / "abort").exists()
    running = await start(listenPort=str(port))
    assert (await running.send(b"x")).code == 0


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_a_broker_may_live_on_ipv6(start: Start) -> None:
    running = await start(bindAddress="::1")
    address = running.broker.address
    assert address == f"[::1]:{running.broker.port}"
    sent = check(await running.send(b"six"))
    assert sent.fields["msgId"].startswith("0" * 31 + "1")
    (message,) = decode_messages((await running.pull()).body)
    assert message.store_host == address
    assert message.born_host.startswith("[::1]:")


async def test_a_broker_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    await made_broker(tmp_path, Disk()).stop()


async def test_an_unreadable_table_is_told_and_the_store_is_let_go(
    tmp_path: Path, start: Start
) -> None:
    running = await start()
    await running.broker.stop()
    file = tmp_path / "store" / "config" / "topics.json"
    good = file.read_bytes()
    for damaged in (file, file.with_name("topics.json.bak")):
        damaged.write_bytes(b'{"broken')
    broker = made_broker(tmp_path, Disk())
    with pytest.raises(CometError, match=r"topics\.json"):
        await broker.start()
    await broker.stop()
    file.write_bytes(good)

    assert (await (await start()).send(b"x")).code == 0


async def test_a_message_sent_back_is_on_disk_when_the_consumer_is_told(start: Start) -> None:
    """It forgets the message then."""
    running = await start(flushIntervalCommitLog="600000")
    assert (await running.send(b"x")).code == 0
    header = ConsumerSendMsgBackRequest(group="c", offset=0, delay_level=3)

    async def send_back() -> Command:
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        return await running.client.call(running.broker.address, code, header, timeout=60)

    assert (await send_back()).code == 0
    store = running.broker.core.store
    assert store.flushed_to == store.written_to
    running.disk.fail_sync = True
    refused = await send_back()
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the disk is gone" in (refused.remark or "")


async def test_what_is_stored_beside_sends_is_synced_soon(start: Start) -> None:
    """Nobody waits for its sync; it must not wait for the next send either."""
    running = await start(flushIntervalCommitLog="20")
    assert (await running.send(b"x")).code == 0
    core = running.broker.core
    put(core.store, b"beside", topic="t")
    assert core.store.flushed_to < core.store.written_to
    await until(lambda: core.store.flushed_to >= core.store.written_to, timeout=60)


async def test_a_change_of_the_trace_switch_shows_in_the_next_answer(start: Start) -> None:
    running = await start()
    assert (await running.send(b"x")).fields["TRACE_ON"] == "true"
    changed = await running.client.call(
        running.broker.address, RequestCode.UPDATE_BROKER_CONFIG, body=b"traceOn=false", timeout=60
    )
    check(changed)

    assert (await running.send(b"x")).fields["TRACE_ON"] == "false"
    assert (await running.send(b"")).fields["TRACE_ON"] == "false"


async def test_bit_maps_that_are_switched_on_in_vain_are_warned_of(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start()
    assert "enableCalcFilterBitMap" not in caplog.text
    code, body = RequestCode.UPDATE_BROKER_CONFIG, b"enableCalcFilterBitMap=true"
    check(await running.client.call(running.broker.address, code, body=body, timeout=60))

    assert "bit maps are stored only with enableConsumeQueueExt=true" in caplog.text


async def test_a_pull_that_breaks_on_a_message_does_not_fail_its_sender(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        needs_properties = False

        def matches_tags(self, tags_code: int) -> bool:
            raise RuntimeError("a broken filter")

        def matches_properties(self, properties: bytes) -> bool:
            return True

    running = await start()
    assert (await running.send(b"x")).code == 0
    held = running.broker.features.pulling.held
    assert held.hold(HeldPull("t", 0, 0, Broken(), object()), 60_000)

    assert (await running.send(b"stored all the same")).code == 0
    assert "a broken filter" in caplog.text
    assert (await running.bodies())[-1] == b"stored all the same"


async def test_many_clients_that_come_and_go_leave_nothing_behind(start: Start) -> None:
    """Abandoned requests of every kind: sent and left, held and left, cut in the middle."""
    running = await start()
    assert (await running.send(b"x")).code == 0
    for _ in range(15):
        client = RemotingClient()
        guest = Running(running.broker, running.disk, client)
        calls = [asyncio.create_task(guest.pull(offset=9, hold_ms=60_000)) for _ in range(10)]
        calls += [asyncio.create_task(guest.send(b"y")) for _ in range(10)]
        _, writer = await asyncio.open_connection(*running.broker.address.split(":"))
        writer.write(b"\x00\x00\xff\xff\x00\x00\x00\x80half a frame")
        await asyncio.wait(calls, timeout=0.02)
        writer.transport.abort()
        await client.close()
        await asyncio.gather(*calls, return_exceptions=True)
    features = running.broker.features
    async with asyncio.timeout(60):
        held, commit, flow = (
            features.pulling.held,
            features.durability.commit,
            features.sending.flow,
        )
        while len(held) or len(commit) or flow.waiting:
            await asyncio.sleep(0.01)
        while sum(server.connections for server in running.broker.listening.servers) > 1:
            await asyncio.sleep(0.01)
