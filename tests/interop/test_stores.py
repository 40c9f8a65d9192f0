"""Stores in both directions: real brokers serve ours, and our broker serves theirs.

100,000 messages in several files of every kind; every body is compared, through consume queues and
through the index.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import kit
import pytest
from codes import Request
from messages import QUEUES, Ledger, check_all, fill
from servers import (
    SMALL_FILES,
    CometStandalone,
    RealBroker,
    Settings,
    connect,
    copy_store,
    write_settings,
)
from wire import Connection

from support.runner.versions import VERSIONS

TOPICS = ["Orders", "Bills"]
GROUP = "billing"
BATCH_ID = {"UNIQ_KEY": "B"}
MESSAGES = 100_000
MORE = 5_000

SETTINGS: Settings = SMALL_FILES | {
    "maxTransferCountOnMessageInMemory": 1000,
    "maxTransferCountOnMessageInDisk": 1000,
    "maxTransferBytesOnMessageInMemory": 4 * 1024 * 1024,
    "maxTransferBytesOnMessageInDisk": 4 * 1024 * 1024,
}


@dataclass(frozen=True)
class Written:
    """A store nobody uses now, and what is in it."""

    store: Path
    ledger: Ledger


def create_topics(broker: str) -> None:
    connection = connect(broker)
    for topic in TOPICS:
        kit.ok(kit.create_topic(connection, topic, read=QUEUES, write=QUEUES))
    kit.ok(kit.create_group(connection, GROUP))
    connection.close()


def commit(broker: str, ledger: Ledger) -> None:
    """The group has consumed half of everything."""
    connection = connect(broker)
    for (topic, queue), digests in ledger.queues.items():
        kit.ok(kit.commit_offset(connection, GROUP, topic, len(digests) // 2, queue=queue))
    connection.close()


def check_offsets(broker: str, ledger: Ledger) -> None:
    """The half that ``commit`` wrote down is known."""
    connection = connect(broker)
    for (topic, queue), digests in ledger.queues.items():
        answer = kit.ok(kit.query_offset(connection, GROUP, topic, queue=queue))
        assert answer.number("offset") == len(digests) // 2, (topic, queue)
    connection.close()


@pytest.fixture(scope="module")
def written_by_comet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    """Two stores of ours: stopped cleanly, and later killed with more messages in it.

    Their newest units are in buffers: few queue files are mapped.
    """
    folder = tmp_path_factory.mktemp("comet")
    settings = SETTINGS | {"mappedQueueFilesMax": 1}
    ledger = Ledger()
    with CometStandalone(folder / "server", store=folder / "store", settings=settings) as server:
        create_topics(server.address)
        fill(server.address, ledger, TOPICS, seed=1, singles=20_000, batches=800)
        commit(server.address, ledger)
        server.stop()
        clean = Written(copy_store(folder / "store", folder / "clean"), ledger.copy())

        server.start()
        fill(server.address, ledger, TOPICS, seed=2, singles=MORE, batches=0)
        server.kill()
        killed = Written(folder / "store", ledger)
    assert (killed.store / "abort").exists()
    assert any((killed.store / "unitbuffers").read_bytes())
    return {"clean": clean, "killed": killed}


def test_the_store_spans_several_files_of_every_kind(written_by_comet: dict[str, Written]) -> None:
    store = written_by_comet["clean"].store

    assert written_by_comet["clean"].ledger.count == MESSAGES
    assert len(list((store / "commitlog").iterdir())) >= 5
    assert len(list((store / "consumequeue" / TOPICS[0] / "0").iterdir())) >= 1
    assert len(list((store / "index").iterdir())) >= 2
    assert not (store / "abort").exists()


@pytest.mark.parametrize("version", ["4.9.7", pytest.param("5.3.3", marks=pytest.mark.long)])
def test_a_real_broker_serves_a_store_that_comet_closed(
    version: str, written_by_comet: dict[str, Written], namesrv: str, tmp_path: Path
) -> None:
    """It also writes on; killed, it leaves a store that ours recovers."""
    written = written_by_comet["clean"]
    ledger, store = written.ledger.copy(), copy_store(written.store, tmp_path / "store")
    with RealBroker(version, tmp_path / "broker", namesrv, store=store, settings=SETTINGS) as real:
        check_all(real.address, ledger)
        check_offsets(real.address, ledger)
        fill(real.address, ledger, TOPICS, seed=3, singles=1000, batches=0)
    serve_with_comet(store, ledger, tmp_path)


@pytest.mark.parametrize("version", ["5.3.3", pytest.param("4.9.7", marks=pytest.mark.long)])
def test_a_real_broker_serves_a_store_that_comet_left_when_killed(
    version: str, written_by_comet: dict[str, Written], namesrv: str, tmp_path: Path
) -> None:
    """Stopped cleanly, it leaves a store that ours opens."""
    written = written_by_comet["killed"]
    store = copy_store(written.store, tmp_path / "store")
    with RealBroker(version, tmp_path / "broker", namesrv, store=store, settings=SETTINGS) as real:
        check_all(real.address, written.ledger)
        real.stop()
    serve_with_comet(store, written.ledger, tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_comet_serves_a_store_that_a_real_broker_wrote(
    version: str, namesrv: str, tmp_path: Path
) -> None:
    ledger, store = Ledger(), tmp_path / "store"
    with RealBroker(version, tmp_path / "broker", namesrv, store=store, settings=SETTINGS) as real:
        create_topics(real.address)
        fill(real.address, ledger, TOPICS, seed=4, singles=10_000, batches=400)
        commit(real.address, ledger)
        real.stop()
    serve_with_comet(store, ledger, tmp_path, committed=True)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_a_backup_of_a_real_broker_in_use_has_its_messages(
    version: str, namesrv: str, tmp_path: Path
) -> None:
    ledger, store, copied = Ledger(), tmp_path / "store", tmp_path / "copied"
    with RealBroker(version, tmp_path / "broker", namesrv, store=store, settings=SETTINGS) as real:
        create_topics(real.address)
        fill(real.address, ledger, TOPICS, seed=6, singles=10_000, batches=0)
        back_up(store, copied)
    serve_with_comet(copied, ledger, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_a_real_broker_serves_a_backup_of_a_store_of_comet(
    version: str, written_by_comet: dict[str, Written], namesrv: str, tmp_path: Path
) -> None:
    written, copied = written_by_comet["clean"], tmp_path / "copied"
    back_up(written.store, copied)
    with RealBroker(version, tmp_path / "broker", namesrv, store=copied, settings=SETTINGS) as real:
        check_all(real.address, written.ledger)
        check_offsets(real.address, written.ledger)


def back_up(store: Path, target: Path) -> None:
    config = write_settings(target.with_suffix(".conf"), SETTINGS)
    command = ["store", "backup", str(store), "--to", str(target), "-c", str(config)]
    done = subprocess.run(
        [sys.executable, "-m", "cometmq", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def serve_with_comet(store: Path, ledger: Ledger, folder: Path, *, committed: bool = False) -> None:
    """Ours opens the store, gives every message back, and goes on writing behind them."""
    ledger = ledger.copy()
    with CometStandalone(folder / "comet", store=store, settings=SETTINGS) as server:
        check_all(server.address, ledger)
        if committed:
            check_offsets(server.address, ledger)
        fill(server.address, ledger, TOPICS, seed=5, singles=50, batches=1)
        check_all(server.address, ledger)


BATCHES = "InBatches"
RECORDS = [(0, b"alone", 1), (1, b"", 3), (4, b"", 10), (14, b"alone", 1)]
"""The records of a round: queue offset, body if it is one message, and number of messages."""


def send_batches(connection: Connection, first: int) -> None:
    """Store a round from a queue offset on, as a Java client 5 does."""
    for offset, body, count in RECORDS:
        if body:
            answer = kit.ok(kit.send(connection, BATCHES, body))
        else:
            items = [(b"%d" % (first + offset + at), {"UNIQ_KEY": "K"}) for at in range(count)]
            answer = kit.ok(kit.send_batch(connection, BATCHES, items, properties=BATCH_ID))
            assert answer.fields["batchUniqId"] == "B"
        assert answer.number("queueOffset") == first + offset
    kit.wait_for_queue(connection, BATCHES, first + 15)


def check_batches(connection: Connection, rounds: int) -> None:
    """Every record is there, at its offset, and leads to the next one."""
    expected = [
        (15 * number + offset, count, 0xC0 if count > 1 else 0)
        for number in range(rounds)
        for offset, _, count in RECORDS
    ]
    met = []
    at = 0
    while at < 15 * rounds:
        answer = kit.pull(connection, GROUP, BATCHES, at, count=1)
        [record] = answer.messages
        met.append((record.queue_offset, answer.next_offset - at, record.sys_flag & 0xC0))
        if record.sys_flag & 0xC0:
            assert record.properties["INNER_NUM"] == str(answer.next_offset - at)
            assert record.properties["INNER_BASE"] == str(at)
        at = answer.next_offset
    assert met == expected
    inside = kit.pull(connection, GROUP, BATCHES, 7, count=1)
    assert (inside.messages[0].queue_offset, inside.next_offset) == (4, 14)
    bounds = [Request.GET_MIN_OFFSET, Request.GET_MAX_OFFSET]
    fields = {"topic": BATCHES, "queueId": 0}
    answers = [kit.ok(connection.request(code, fields)).number("offset") for code in bounds]
    assert answers == [0, 15 * rounds]


def test_queues_that_hold_batches_go_from_one_broker_to_the_other(
    namesrv: str, tmp_path: Path
) -> None:
    """Closed and killed; each broker reads what the other wrote, and goes on behind it."""
    store = tmp_path / "store"
    with RealBroker("5.3.3", tmp_path / "broker", namesrv, store=store, settings=SETTINGS) as real:
        connection = connect(real.address)
        attributes = "+queue.type=BatchCQ"
        kit.ok(kit.create_topic(connection, BATCHES, read=1, write=1, attributes=attributes))
        kit.ok(kit.create_group(connection, GROUP))
        send_batches(connection, 0)
        connection.close()
        real.stop()
        with CometStandalone(tmp_path / "comet", store=store, settings=SETTINGS) as server:
            connection = connect(server.address)
            check_batches(connection, 1)
            send_batches(connection, 15)
            connection.close()
            server.stop()
        real.start()
        connection = connect(real.address)
        check_batches(connection, 2)
        send_batches(connection, 30)
        connection.close()
        real.kill()
        with CometStandalone(tmp_path / "comet", store=store, settings=SETTINGS) as server:
            connection = connect(server.address)
            check_batches(connection, 3)
            send_batches(connection, 45)
            connection.close()
            server.kill()
        real.start()
        connection = connect(real.address)
        check_batches(connection, 4)
        connection.close()
        real.stop()
