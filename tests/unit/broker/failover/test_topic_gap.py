"""Topics of messages that a slave has received since it copied the topics of its master."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cometmq.broker.failover.topic_gap import FILE_NAME, TopicGap
from cometmq.model.errors import StoreError
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.store import MessageStore
from support.checks.waiting import until
from support.stores.small_stores import put
from unit.broker.conftest import Tables, open_store

LIMIT_S = 60.0


class Log:
    """The queues with the end of their last message."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], int] = {}
        self.written_to = 0
        self.min_log_offset = 0
        self.batch_topics: set[str] = set()

    def put(self, topic: str, queue_id: int = 0) -> int:
        """Append a message of 100 bytes, and return its log offset."""
        at, self.written_to = self.written_to, self.written_to + 100
        self.queues[topic, queue_id] = self.written_to
        return at

    def queue_counts_behind(self, log_offset: int) -> dict[str, int]:
        behind = [key for key, end in self.queues.items() if end > log_offset]
        return {topic: queue_id + 1 for topic, queue_id in sorted(behind)}

    def written_behind(self, topic: str, log_offset: int) -> list[tuple[int, int]]:
        return [
            (end - 100, 100)
            for key, end in self.queues.items()
            if key[0] == topic and end > log_offset
        ]

    def cold_record(self, log_offset: int, size_bytes: int) -> None:
        return None

    def holds_batches(self, topic: str) -> bool:
        return topic in self.batch_topics

    def written_record_at(self, log_offset: int, size_bytes: int) -> None:
        """Messages have no content here."""


class Slave:
    """A slave with the tables of a broker."""

    def __init__(self, tables: Tables, log: Log | MessageStore | None = None) -> None:
        self.tables = tables
        self.log = log or Log()
        self.gap = self.opened()

    def opened(self) -> TopicGap:
        """The state after a start."""
        return TopicGap(
            self.tables.topics,
            self.log,
            self.tables.topics.file_beside(FILE_NAME),
            lambda: self.tables.settings,
        )

    async def copy(self, *topics: str, epoch: int = 0) -> None:
        """Copy a table with these topics from the master of an epoch."""
        configs = {name: self.tables.topic(name) for name in topics}
        version = DataVersion(state_version=epoch, timestamp=self.log.written_to, counter=1)
        wrapper = TopicConfigSerializeWrapper(topic_config_table=configs, data_version=version)
        await self.tables.topics.copy(wrapper, self.log.written_to)

    def queues_of(self, topic: str) -> int:
        config = self.tables.topics.get(topic)
        return 0 if config is None else config.read_queue_nums


@pytest.fixture
def slave(tables: Tables) -> Slave:
    return Slave(tables)


async def test_topics_behind_the_last_copy_are_created_from_their_queues(slave: Slave) -> None:
    slave.log.put("deleted")
    slave.log.put("copied")
    await slave.copy("copied")
    slave.log.put("few", 2)
    slave.log.put("many", 11)
    slave.log.put("%RETRY%g")

    await slave.gap.begin_epoch(1)

    default = slave.tables.settings.default_topic_queue_nums
    assert slave.queues_of("few") == default
    assert slave.queues_of("many") == 12
    assert slave.queues_of("%RETRY%g") == 1
    assert slave.queues_of("copied") == 1
    assert "deleted" not in slave.tables.topics


async def test_a_topic_whose_queues_hold_batches_is_created_as_such(slave: Slave) -> None:
    """RocketMQ does not open a store with such queues of another topic."""
    slave.log.put("in-batches")
    slave.log.batch_topics.add("in-batches")
    await slave.gap.begin_epoch(1)
    created = slave.tables.topics.get("in-batches")
    assert created is not None
    assert created.attributes == {"queue.type": "BatchCQ"}


async def test_a_topic_gets_the_further_queues_of_messages_behind_the_last_copy(
    slave: Slave,
) -> None:
    slave.log.put("narrowed", 9)
    await slave.copy("narrowed", "widened")
    slave.log.put("narrowed", 0)
    slave.log.put("widened", 5)

    await slave.gap.begin_epoch(1)

    assert (slave.queues_of("narrowed"), slave.queues_of("widened")) == (1, 6)


async def test_a_topic_that_gets_further_queues_loses_none_that_is_written(slave: Slave) -> None:
    topics = slave.tables.topics
    await topics.put([TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=8)])
    slave.log.put("T", 5)

    await slave.gap.begin_epoch(1)

    config = topics.get("T")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums) == (6, 8)


async def test_before_the_first_copy_every_topic_of_the_log_is_created(slave: Slave) -> None:
    slave.log.put("T")
    slave.gap = slave.opened()  # after a crash
    await slave.gap.begin_epoch(1)
    assert slave.queues_of("T")


async def test_a_store_that_had_no_controller_has_the_topics_of_its_log(tables: Tables) -> None:
    log = Log()
    at = log.put("deleted")
    slave = Slave(tables, log)
    log.put("new")

    await slave.gap.begin_epoch(1)

    assert "deleted" not in tables.topics
    assert not slave.gap.covers(at)
    assert slave.queues_of("new")


async def test_delayed_messages_behind_the_last_copy_get_their_topic(slave: Slave) -> None:
    before = slave.log.put("SCHEDULE_TOPIC_XXXX")
    await slave.copy()
    behind = slave.log.put("SCHEDULE_TOPIC_XXXX")
    await slave.gap.begin_epoch(1)
    later = slave.log.put("SCHEDULE_TOPIC_XXXX")
    topics = slave.tables.topics

    assert topics.queue_for("T", 3, before) is None
    assert topics.queue_for("T", 3, later) is None
    assert topics.queue_for("no topic", 3, behind) is None
    assert topics.queue_for("T", 3, behind) == 3
    assert topics.queue_for("T", 3, behind) == 3
    await until(lambda: slave.queues_of("T"), timeout=LIMIT_S, pause_s=0)
    assert slave.queues_of("T") == slave.tables.settings.default_topic_queue_nums


async def test_a_copy_that_ends_after_an_election_does_not_take_the_epoch_back(
    slave: Slave,
) -> None:
    """Name servers would refuse the new master."""
    topics = slave.tables.topics
    await slave.copy("T", epoch=6)
    await slave.gap.begin_epoch(7)
    await slave.copy("T", epoch=6)
    assert topics.version.state_version == 7
    await slave.copy("T", epoch=8)
    assert topics.version.state_version == 8


async def test_the_offsets_outlive_a_restart(slave: Slave) -> None:
    slave.log.put("deleted")
    await slave.copy()
    behind = slave.log.put("new")
    slave.gap = slave.opened()
    await slave.gap.begin_epoch(1)
    assert slave.queues_of("new")
    assert "deleted" not in slave.tables.topics

    slave.gap = slave.opened()
    assert slave.gap.covers(behind)


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("loss", ["truncation", "power cut"])
async def test_what_replaces_lost_messages_counts_as_not_copied(
    slave: Slave, loss: str, crashes: bool
) -> None:
    slave.log.put("a")
    slave.log.put("b")
    await slave.copy("a", "b")
    slave.log.written_to = 100
    if loss == "truncation":
        slave.gap.truncated(100)
    else:
        slave.gap = slave.opened()
    slave.log.put("new")
    if crashes:
        slave.gap = slave.opened()

    await slave.gap.begin_epoch(1)

    assert slave.queues_of("new")


async def test_a_copy_that_was_under_way_does_not_cover_what_replaces_truncated_messages(
    slave: Slave,
) -> None:
    first = slave.log.put("old")
    slave.log.put("old")
    async with slave.gap.copying:
        copying = asyncio.create_task(slave.copy("old"))
        await asyncio.sleep(0)
        slave.log.written_to = first + 100
        slave.gap.truncated(first + 100)
    await copying
    slave.log.put("new")
    await slave.gap.begin_epoch(1)
    assert slave.queues_of("new") > 0


async def test_a_copy_that_is_being_saved_does_not_cover_what_replaces_truncated_messages(
    slave: Slave,
) -> None:
    loop, held = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    slave.log.put("a")
    slave.log.put("b")
    holding = loop.run_in_executor(None, held.wait, LIMIT_S)
    saving = asyncio.create_task(slave.gap.copied(slave.log.written_to))
    await asyncio.sleep(0)
    slave.log.written_to = 100
    slave.gap.truncated(100)
    held.set()
    await holding
    await saving
    slave.log.put("new")
    slave.gap = slave.opened()  # after a crash

    await slave.gap.begin_epoch(1)

    assert slave.queues_of("new")


async def test_topics_that_the_disk_refused_are_created_by_the_next_try(
    slave: Slave,
) -> None:
    slave.log.put("new")
    file = slave.tables.config / "topics.json"
    blocked = file.with_name("topics.json.tmp")
    blocked.mkdir()
    with pytest.raises(StoreError):
        await slave.gap.begin_epoch(1)
    assert "new" not in slave.tables.topics

    blocked.rmdir()
    await slave.gap.begin_epoch(1)
    assert slave.queues_of("new")


async def test_no_epoch_begins_before_the_gap_is_on_the_disk(slave: Slave) -> None:
    """A slave takes the epoch as the sign that the table has all topics."""
    slave.log.put("new")
    (slave.tables.config / f"{FILE_NAME}.tmp").mkdir()
    with pytest.raises(StoreError):
        await slave.gap.begin_epoch(7)
    assert slave.tables.topics.version.state_version < 7


async def test_no_epoch_begins_during_a_copy(slave: Slave) -> None:
    slave.log.put("new")
    async with slave.gap.copying:
        beginning = asyncio.create_task(slave.gap.begin_epoch(7))
        done, _ = await asyncio.wait([beginning], timeout=0.2)
        assert not done
        assert slave.tables.topics.version.state_version < 7
        assert "new" not in slave.tables.topics
    await beginning
    assert slave.queues_of("new")


async def test_a_master_knew_the_topics_of_its_log(slave: Slave) -> None:
    await slave.gap.begin_epoch(1)
    slave.log.put("deleted")
    slave.gap.ended_lead()
    slave.log.put("new")

    await slave.gap.begin_epoch(1)

    assert slave.queues_of("new")
    assert "deleted" not in slave.tables.topics


async def until_saved(slave: Slave) -> None:
    """Wait until the file says that the topics of the whole log are known."""
    file = slave.tables.config / FILE_NAME
    await until(
        lambda: json.loads(file.read_text())["knownTo"] == slave.log.written_to,
        timeout=LIMIT_S,
        pause_s=0,
    )


async def test_after_a_crash_a_master_knew_the_topics_of_its_log_at_the_last_interval(
    slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    await slave.gap.begin_epoch(1)
    slave.log.put("deleted")
    slave.gap.note_lead()
    await until_saved(slave)
    slave.log.put("new")
    slave.gap = slave.opened()

    await slave.gap.begin_epoch(2)

    assert slave.queues_of("new")
    assert "deleted" not in slave.tables.topics

    blocked = slave.tables.config / f"{FILE_NAME}.tmp"
    blocked.mkdir()
    slave.gap.note_lead()
    await until(lambda: "after a restart" in caplog.text, timeout=LIMIT_S, pause_s=0)


async def test_two_elections_keep_both_gaps_until_the_log_has_lost_the_first(
    slave: Slave,
) -> None:
    first = slave.log.put("SCHEDULE_TOPIC_XXXX")
    await slave.gap.begin_epoch(1)
    slave.gap.ended_lead()
    second = slave.log.put("SCHEDULE_TOPIC_XXXX")
    await slave.gap.begin_epoch(1)
    assert slave.gap.covers(first)
    assert slave.gap.covers(second)

    slave.gap.ended_lead()
    slave.log.min_log_offset = slave.log.written_to
    third = slave.log.put("SCHEDULE_TOPIC_XXXX")
    await slave.gap.begin_epoch(1)
    assert not slave.gap.covers(second)
    assert slave.gap.covers(third)


def table_of(epoch: int, *names: str) -> TopicConfigSerializeWrapper:
    """The table of the master of an epoch."""
    return TopicConfigSerializeWrapper(
        topic_config_table={name: TopicConfig(topic_name=name) for name in names},
        data_version=DataVersion(state_version=epoch, timestamp=5, counter=9),
    )


async def test_a_table_from_before_the_election_of_the_master_is_not_copied(slave: Slave) -> None:
    """The master may not have created the topics that it lacks; then they are not known here."""
    await slave.copy("T", epoch=6)
    slave.log.put("new")
    slave.gap.epoch = 7

    assert not await slave.tables.topics.copy(table_of(6, "other"), slave.log.written_to)
    assert "other" not in slave.tables.topics
    await slave.gap.begin_epoch(8)
    assert slave.queues_of("new")


async def test_topics_are_copied_when_the_controllers_count_epochs_from_1_again(
    slave: Slave,
) -> None:
    """Their data was lost, and the brokers were registered again."""
    await slave.copy("T", epoch=6)
    slave.gap = slave.opened()
    slave.gap.epoch = 1

    assert await slave.tables.topics.copy(table_of(1, "new"), slave.log.written_to)
    assert "new" in slave.tables.topics


@pytest.mark.parametrize("count", [10, 10_000])
async def test_a_copy_under_way_is_over_before_the_epoch_begins(slave: Slave, count: int) -> None:
    topics = slave.tables.topics
    await slave.copy("T", epoch=6)
    slave.log.put("new")
    found = table_of(6, *(f"t{n}" for n in range(count)))
    copying = asyncio.create_task(topics.copy(found, 0))
    await asyncio.sleep(0)
    await slave.gap.begin_epoch(7)
    await copying
    assert topics.version.state_version == 7
    assert slave.queues_of("new")


# --- messages that wait -------------------------------------------------------------------------


@pytest.fixture
def replica(tmp_path: Path, tables: Tables) -> Iterator[Slave]:
    """A slave with a real log, which no other replica has confirmed yet."""
    store = open_store(tmp_path / "store", tables, confirms=True)
    yield Slave(tables, store)
    store.close()


def wait_for(
    replica: Slave, topic: str, target: str, *, queue_id: int = 0, real_queue: str = "0"
) -> None:
    """Append a message that waits for its delivery or decision."""
    properties = {"REAL_TOPIC": target, "REAL_QID": real_queue}
    put(replica.log, topic=topic, queue_id=queue_id, properties=properties)


def config_of(replica: Slave) -> TopicConfigSerializeWrapper:
    topics = replica.tables.topics
    return TopicConfigSerializeWrapper(
        topic_config_table=dict(topics.all()), data_version=topics.version
    )


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"]
)
async def test_topics_that_messages_wait_for_exist_before_the_epoch_begins(
    replica: Slave, topic: str
) -> None:
    wait_for(replica, topic, "deleted")
    await replica.copy("few")
    wait_for(replica, topic, "T", queue_id=3)
    wait_for(replica, topic, "many", real_queue="11")
    wait_for(replica, topic, "%RETRY%g", queue_id=1)
    wait_for(replica, topic, "few", real_queue="4")
    wait_for(replica, topic, "no topic")
    wait_for(replica, topic, "", queue_id=1)
    wait_for(replica, topic, "T", real_queue="x")
    assert replica.log.readable_to == 0

    await replica.gap.begin_epoch(7)

    default = replica.tables.settings.default_topic_queue_nums
    assert replica.queues_of("T") == default
    assert replica.queues_of("many") == 12
    assert replica.queues_of("%RETRY%g") == 1
    assert replica.queues_of("few") == 5
    assert not {"deleted", "no topic", ""} & replica.tables.topics.all().keys()


async def test_only_so_many_messages_that_wait_are_read(
    replica: Slave, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cometmq.broker.failover.topic_gap.WAITING_MAX", 2)
    for name in ("a", "b", "c"):
        wait_for(replica, "SCHEDULE_TOPIC_XXXX", name)
    await replica.gap.begin_epoch(7)
    assert {"a", "b"} <= replica.tables.topics.all().keys()
    assert "c" not in replica.tables.topics
    assert "only 2 delayed and half messages were read" in caplog.text


async def test_a_topic_of_delayed_messages_only_outlives_two_elections(tmp_path: Path) -> None:
    brokers = []
    for name in ("a", "b"):
        tables = Tables(tmp_path / name / "config")
        brokers.append(Slave(tables, open_store(tmp_path / name, tables)))
    a, b = brokers
    await a.gap.begin_epoch(1)
    await b.tables.topics.copy(config_of(a), b.log.written_to)
    a.tables.topic("T")  # created by the send of a delayed message, which both have
    for broker in brokers:
        wait_for(broker, "SCHEDULE_TOPIC_XXXX", "T")
    await b.gap.begin_epoch(2)  # a was stopped
    a.gap = a.opened()
    a.gap.epoch = 2
    await a.tables.topics.copy(config_of(b), a.log.written_to)
    assert a.tables.topics.version.state_version == 2
    await a.gap.begin_epoch(3)  # b was stopped
    assert a.tables.topics.queue_for("T", 0, 0) == 0
    for broker in brokers:
        broker.log.close()


def test_a_damaged_file_is_named(slave: Slave) -> None:
    file = slave.tables.config / FILE_NAME
    file.write_text(json.dumps({"knownTo": "x"}))
    with pytest.raises(StoreError, match=FILE_NAME):
        slave.opened()
