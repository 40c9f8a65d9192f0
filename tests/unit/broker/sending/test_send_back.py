"""Messages sent back: another try behind a delay, or a dead letter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.durability.acknowledgements import Acknowledgements
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.sending.send_back import SendBackHandler
from cometmq.broker.stats.counters import BrokerStats
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ResponseError
from cometmq.model.group import CustomizedRetryPolicy, GroupRetryPolicy
from cometmq.model.message import StoredMessage
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.record import body_at, decode_record, encode_host
from cometmq.remoting import Request
from cometmq.store import Appended, MessageStore
from support.stores.small_stores import put, put_as_one
from support.wire.memory_link import link
from support.wire.message_records import record
from unit.broker.conftest import Tables

BORN, STORED, US = (encode_host(f"10.0.0.{n}", 10911) for n in (9, 7, 1))


class Broker:
    """The part of a broker that messages sent back reach, with one message in topic T."""

    def __init__(self, tables: Tables, store: MessageStore) -> None:
        self.tables = tables
        self.store = store
        tables.topic("T")
        self.slaves = Acknowledgements(tables.role, lambda: tables.settings, lambda: ())
        self.stats = BrokerStats("C", clock=tables.clock, is_system_topic=lambda _: False)
        back = SendBackHandler(
            store,
            topics=tables.topics,
            groups=tables.groups,
            levels=DelayLevels.parse(),
            stats=self.stats,
            host="10.0.0.1",
            settings=lambda: tables.settings,
            role=tables.role,
            durability=DurabilityWait(None, self.slaves),
            store_host=US,
            cold_reads=ColdReads(),
            queue_chance=lambda queues: queues - 1,
        )
        self.version = 479
        handle = with_prerequisites(back.send_back)

        def send_back(request: Request) -> Any:
            request.connection.version = self.version
            return handle(request)

        self.client = link({RequestCode.CONSUMER_SEND_MSG_BACK: send_back})[1]
        self.failed = self.put(KEYS="k")

    def put(self, *, reconsume_times: int = 0, **properties: str) -> Appended:
        facts = {"flag": 3, "sys_flag": 2, "born_time_ms": 11, "reconsume_times": reconsume_times}
        hosts = {"born_host": BORN, "store_host": STORED}
        return put(self.store, b"fails", "T", 0, properties, **facts, **hosts)

    async def send_back(self, level: int = 1, **changes: Any) -> Command:
        fields = {"group": "g", "offset": self.failed.log_offset, "delayLevel": level} | changes
        texts = {name: str(value) for name, value in fields.items()}
        return await self.client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields=texts, timeout=30)

    def stored(self, topic: str, queue: int = 0) -> StoredMessage | None:
        found = self.store.get(topic, queue, 0, 1)
        return decode_record(found.slices[0]) if found.slices else None

    def group(self, **changes: Any) -> None:
        self.tables.group("g", **changes)


async def test_a_record_imitated_inside_a_body_cannot_be_sent_back(broker: Broker) -> None:
    """Else the retry, and the dead letter, would have times and hosts that are made up."""
    at = broker.store.written_to + body_at(0)
    imitated = record(b"made up", queue_id=0, queue_offset=1, log_offset=at, born_host=BORN)
    put(broker.store, imitated, topic="T", born_host=BORN, store_host=STORED)
    answer = await broker.send_back(offset=at)
    assert (answer.code, answer.remark) == (1, f"look message by offset failed, {at}")
    assert broker.stored("SCHEDULE_TOPIC_XXXX", 0) is None
    assert (await broker.send_back()).code == 0


async def test_a_record_with_several_messages_is_not_sent_back(broker: Broker) -> None:
    """The consumer stores a copy of the one message that failed."""
    batch = put_as_one(broker.store, b"1", b"2", topic="in-batches")
    answer = await broker.send_back(offset=batch.log_offset)
    assert (answer.code, "is a batch" in str(answer.remark)) == (1, True)
    assert broker.stored("SCHEDULE_TOPIC_XXXX", 0) is None


async def test_a_message_sent_back_waits_in_the_delay_topic(broker: Broker) -> None:
    assert (await broker.send_back(level=2)).code == 0
    message = broker.stored("SCHEDULE_TOPIC_XXXX", 1)
    assert message is not None
    assert message.properties == {
        "KEYS": "k",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": f"0A000007{10911:08X}{broker.failed.log_offset:016X}",
        "WAIT": "false",
        "DELAY": "2",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    assert (message.body, message.flag, message.sys_flag) == (b"fails", 3, 2)
    assert [topic for topic, _ in broker.stats.topics_put()] == ["SCHEDULE_TOPIC_XXXX"]
    assert (message.born_time_ms, message.born_host) == (11, "10.0.0.9:10911")
    assert message.store_host == "10.0.0.1:10911"
    assert message.reconsume_times == 1


async def test_too_few_replicas_refuse_a_message_sent_back(broker: Broker) -> None:
    broker.slaves.refusal = ResponseError(1, "in-sync replicas not enough")
    answer = await broker.send_back()
    assert (answer.code, answer.remark) == (1, "in-sync replicas not enough")
    assert broker.stored("SCHEDULE_TOPIC_XXXX", 0) is None


async def test_the_broker_chooses_a_level_by_the_tries_so_far(broker: Broker) -> None:
    broker.failed = broker.put(reconsume_times=4)
    assert (await broker.send_back(level=0)).code == 0
    message = broker.stored("SCHEDULE_TOPIC_XXXX", 6)
    assert message is not None
    assert (message.properties["DELAY"], message.reconsume_times) == ("7", 5)


@pytest.mark.parametrize(("level", "queue"), [(0, 4), (3, 2)], ids=["none", "its own"])
async def test_the_policy_of_the_group_applies_unless_the_consumer_sets_a_level(
    broker: Broker, level: int, queue: int
) -> None:
    minutes = CustomizedRetryPolicy(next=[60_000])
    broker.group(group_retry_policy=GroupRetryPolicy(customized_retry_policy=minutes))
    assert (await broker.send_back(level=level)).code == 0
    message = broker.stored("SCHEDULE_TOPIC_XXXX", queue)
    assert message is not None
    assert message.properties["DELAY"] == str(queue + 1)


async def test_dead_letters_of_an_old_brokers_topic_are_stored_though_it_cannot_be_read(
    broker: Broker,
) -> None:
    """Before 4.9.2 brokers created it without the permission to read; tools add it."""
    broker.tables.topic("%DLQ%g", perm=2)
    assert (await broker.send_back(level=-1)).code == 0
    assert broker.stored("%DLQ%g") is not None
    topic = broker.tables.topics.get("%DLQ%g")
    assert topic is not None
    assert topic.perm == 2


async def test_a_message_given_up_is_a_dead_letter_at_once(broker: Broker) -> None:
    assert (await broker.send_back(level=-1)).code == 0
    message = broker.stored("%DLQ%g")
    assert message is not None
    assert message.properties["RETRY_TOPIC"] == "T"
    assert message.reconsume_times == 1
    topic = broker.tables.topics.get("%DLQ%g")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


@pytest.mark.parametrize(("tries", "is_dead"), [(1, False), (2, True)])
async def test_the_groups_retries_can_be_used_up(broker: Broker, tries: int, is_dead: bool) -> None:
    broker.group(retry_max_times=2)
    broker.failed = broker.put(reconsume_times=tries)
    await broker.send_back()
    assert (broker.stored("%DLQ%g") is not None) == is_dead


@pytest.mark.parametrize(("version", "is_dead"), [(121, True), (120, False)])
async def test_clients_from_3_4_9_on_set_their_own_maximum(
    broker: Broker, version: int, is_dead: bool
) -> None:
    broker.version = version
    await broker.send_back(maxReconsumeTimes=0)
    assert (broker.stored("%DLQ%g") is not None) == is_dead


@pytest.mark.parametrize("level", [3, -1])
async def test_a_message_with_the_greatest_number_of_retries_is_stored_again(
    broker: Broker, level: int
) -> None:
    """A producer may set any number: the message must not stay with its consumer."""
    broker.group(retry_max_times=2**31 - 1)
    broker.failed = broker.put(reconsume_times=2**31 - 1)
    assert (await broker.send_back(level=level)).code == 0
    message = broker.stored("%DLQ%g")
    assert message is not None
    assert message.reconsume_times == 2**31 - 1


async def test_a_group_without_retry_queues_drops_the_message(broker: Broker) -> None:
    broker.group(retry_queue_nums=0)
    before = broker.store.written_to
    assert (await broker.send_back()).code == 0
    assert broker.store.written_to == before


async def test_a_message_goes_to_one_of_the_groups_retry_queues(broker: Broker) -> None:
    broker.group(retry_queue_nums=3)
    await broker.send_back(unitMode=True)
    message = broker.stored("SCHEDULE_TOPIC_XXXX")
    assert message is not None
    assert message.properties["REAL_QID"] == "2"
    topic = broker.tables.topics.get("%RETRY%g")
    assert topic is not None
    assert (topic.read_queue_nums, topic.topic_sys_flag) == (3, 2)


@pytest.mark.parametrize("offset", [1, -1, 2**60])
async def test_an_offset_where_no_message_begins_is_refused(broker: Broker, offset: int) -> None:
    answer = await broker.send_back(offset=offset)
    assert (answer.code, answer.remark) == (1, f"look message by offset failed, {offset}")


async def test_bad_and_unknown_groups_are_refused(broker: Broker) -> None:
    assert (await broker.send_back(group="../g")).code == 29
    tables = broker.tables
    tables.settings = dataclasses.replace(tables.settings, auto_create_subscription_group=False)
    answer = await broker.send_back()
    assert answer.code == 26
    assert (answer.remark or "").startswith("subscription group not exist, g ")


async def test_nothing_is_taken_back_where_nothing_may_be_written(broker: Broker) -> None:
    await broker.send_back()
    retry = broker.tables.topics.get("%RETRY%g")
    assert retry is not None
    retry.perm = 4
    answer = await broker.send_back()
    assert answer.code == 16
    assert answer.remark == "the topic[%RETRY%g] sending message is forbidden"
    broker.tables.settings = dataclasses.replace(broker.tables.settings, broker_permission=4)
    answer = await broker.send_back()
    assert answer.remark == "the broker[10.0.0.1] sending message is forbidden"


async def test_a_store_that_takes_nothing_is_told(broker: Broker) -> None:
    broker.store.close()
    answer = await broker.send_back()
    assert answer.code == 1
    assert answer.remark
