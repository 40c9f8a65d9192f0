"""Pop on our brokers: a change of the master, of the mode of a group, and very many held pops."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.pop.pops import DISK_WAITS_MAX, GROUP_DELETED
from cometmq.broker.pop.receipts import retry_topic_of
from cometmq.client import AdminClient, Message, Producer, PullConsumer, StartFrom
from cometmq.client._pop.calls import ReceiptHandle
from cometmq.model.errors import CometError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.pop import (
    MessageRequestMode,
    MessageRequestModeSerializeWrapper,
    SetMessageRequestModeRequestBody,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.pop import PollingInfoRequest, PollingInfoResponse
from cometmq.protocol.record import decode_messages
from cometmq.remoting import RemotingClient
from cometmq.store.backup import restore_backup, take_backup
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs
from support.checks.waiting import until
from support.stores.cold_files import ColdDisk, ColdRead
from support.wire.pop_clients import GROUP, TOPIC, PopClient

FAST = {"flushDiskType": "ASYNC_FLUSH"}


@pytest.fixture
async def client() -> Any:
    made = RemotingClient()
    yield made
    await made.close()


async def prepared(pairs: Pairs, count: int, **settings: str) -> Broker:
    """A master with messages in one queue."""
    master = await pairs.start("master", **FAST, **settings)
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.create_topic(TOPIC, queues=1)
        await admin.create_group(SubscriptionGroupConfig(group_name=GROUP))
    async with Producer(pairs.name_server.address, group="p") as producer:
        for number in range(count):
            await producer.send(Message(topic=TOPIC, body=b"%d" % number))
    return master


async def set_mode(client: RemotingClient, broker: Broker, group: str) -> int:
    """Let a group pop the topic; return the code of the response."""
    body = SetMessageRequestModeRequestBody(
        topic=TOPIC, consumer_group=group, mode=MessageRequestMode.POP
    ).encode()
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    return (await client.call(broker.address, code, body=body, timeout=LIMIT_S)).code


async def modes(
    client: RemotingClient, broker: Broker
) -> dict[str, dict[str, SetMessageRequestModeRequestBody]]:
    """Return the modes of all topics and groups."""
    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
    body = (await client.call(broker.address, code, timeout=LIMIT_S)).body
    return MessageRequestModeSerializeWrapper.decode(body).message_request_mode_map


async def test_what_is_in_flight_goes_over_to_the_new_master(
    pairs: Pairs, client: RemotingClient
) -> None:
    """What was acknowledged is not redelivered, the rest when its invisible time is over."""
    master = await prepared(pairs, 10)
    slave = await pairs.start("slave", **SLAVE, **FAST)
    before = PopClient(client, master)
    popped = await before.pop(max_msg_nums=6, invisible_time=3_000)
    for _, handle in popped[:2]:
        assert await before.ack(handle) == 0
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    assert slave.features.replication.metadata.made() is not None
    await until(lambda: slave.core.topics.get(TOPIC) and slave.core.groups.get(GROUP))
    await pairs.stop(master)
    slave.core.role.change("ASYNC_MASTER", 0)
    await slave.core.role.in_force.wait()

    after = PopClient(client, slave)
    # The committed offset of the group follows from the log: only what was not popped comes now.
    assert [message.body for message, _ in await after.pop()] == [b"6", b"7", b"8", b"9"]
    assert await after.ack(popped[2][1]) == 0  # a receipt of the old master counts
    again: list[bytes] = []

    async def has_come() -> bool:
        again.extend(message.body for message, _ in await after.pop())
        return len(again) >= 3

    async with asyncio.timeout(LIMIT_S):
        while not await has_come():
            await asyncio.sleep(0.05)
    assert sorted(again) == [b"3", b"4", b"5"]
    assert now_ms() >= popped[0][1].expires_ms()


@pytest.mark.parametrize("second_form", ["false", "true"])
async def test_a_batch_of_acknowledgements_has_redelivered_messages_too(
    pairs: Pairs, client: RemotingClient, second_form: str
) -> None:
    """An item names the topic of the message, and whether the message was redelivered."""
    master = await prepared(pairs, 2, enableRetryTopicV2=second_form)
    figures = master.features.pop.figures
    consumer = PopClient(client, master)
    assert len(await consumer.pop(invisible_time=1_000)) == 2
    popped: list[tuple[StoredMessage, ReceiptHandle]] = []
    async with asyncio.timeout(LIMIT_S):
        while len(popped) < 2:
            popped += await consumer.pop()
            await asyncio.sleep(0.05)
    assert {handle.kind for _, handle in popped} == {"2" if second_form == "true" else "1"}
    assert figures().in_flight == 2
    assert await consumer.ack_together(*(handle for _, handle in popped)) == 0
    assert figures().in_flight == 0


async def test_a_mode_creates_its_group_if_groups_are_created_on_first_use(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 0)
    assert await set_mode(client, master, "new") == 0
    assert master.core.groups.get("new") is not None
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.set_broker_config(master.address, {"autoCreateSubscriptionGroup": "false"})
    assert await set_mode(client, master, "other") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_stop_and_a_start_keep_what_is_in_flight(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 4)
    popped = await PopClient(client, master).pop(max_msg_nums=3, invisible_time=60_000)
    await pairs.stop(master)
    master = await pairs.start("master", **FAST)
    consumer = PopClient(client, master)
    assert [message.body for message, _ in await consumer.pop()] == [b"3"]
    assert [await consumer.ack(handle) for _, handle in popped] == [0, 0, 0]
    assert master.features.pop.figures().in_flight == 1


async def test_what_is_in_flight_is_read_whatever_number_of_revive_queues_is_set(
    pairs: Pairs, client: RemotingClient
) -> None:
    """The topic keeps the number of its queues, and the setting goes up and down."""
    await pairs.stop(await prepared(pairs, 1))
    master = await pairs.start("master", **FAST, reviveQueueNum="16")
    popped = await PopClient(client, master).pop(invisible_time=2_000_000)
    assert [handle.text.split()[3] for _, handle in popped] == ["14"]
    await pairs.stop(master)

    master = await pairs.start("master", **FAST)

    await until(lambda: master.features.pop.figures().in_flight == 1)
    assert await PopClient(client, master).ack(popped[0][1]) == 0
    assert master.features.pop.figures().in_flight == 0


async def test_the_first_pop_while_the_broker_stops_leaves_nothing_to_revive(
    pairs: Pairs, client: RemotingClient
) -> None:
    """The parts of pop are made for it, after those that are there have ended."""
    master = await prepared(pairs, 1)
    pop = master.features.pop
    assert pop.parts.made() is None
    await pop.end()
    assert len(await PopClient(client, master).pop(invisible_time=1_000)) == 1
    assert pop.figures().in_flight == 1
    assert pop.parts.get().reviver._timer is None


async def test_a_new_master_that_does_not_know_the_group_yet_drops_nothing(
    pairs: Pairs, client: RemotingClient
) -> None:
    """Slaves copy groups and topics every ten seconds, and the retry topic with them."""
    master = await pairs.start("master", **FAST)
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.create_topic(TOPIC, queues=1)
    slave = await pairs.start("slave", **SLAVE, **FAST)
    await until(lambda: slave.core.topics.get(TOPIC))
    async with Producer(pairs.name_server.address, group="p") as producer:
        await producer.send(Message(topic=TOPIC, body=b"0"))
    await master.core.groups.create_all([GROUP])
    assert len(await PopClient(client, master).pop(invisible_time=200)) == 1
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    await pairs.stop(master)
    assert slave.core.groups.get(GROUP) is None
    slave.core.role.change("ASYNC_MASTER", 0)
    await until(lambda: slave.features.pop.figures().late_ms > 0)

    consumer = PopClient(client, slave)
    async with asyncio.timeout(LIMIT_S):
        while not (found := await consumer.pop()):
            await asyncio.sleep(0.05)
    assert [message.body for message, _ in found] == [b"0"]


async def test_a_slave_that_is_asked_to_pop_stores_nothing(
    pairs: Pairs, client: RemotingClient
) -> None:
    """It has the check points of its master, and only the master redelivers."""
    master = await prepared(pairs, 1)
    slave = await pairs.start("slave", **SLAVE, **FAST)
    await PopClient(client, master).pop(invisible_time=100)
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    await until(lambda: slave.core.topics.get(TOPIC) and slave.core.groups.get(GROUP))

    response = await PopClient(client, slave).request()

    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not slave.features.pop.parts.get().check_points.is_loaded
    await until(lambda: master.features.pop.figures().revived == 1)
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    assert slave.features.pop.figures().revived == 0


async def test_a_restored_backup_has_what_was_in_flight(
    pairs: Pairs, client: RemotingClient, tmp_path: Path
) -> None:
    """Nothing is lost; what was acknowledged since is delivered again, as other messages are."""
    master = await prepared(pairs, 6)
    consumer = PopClient(client, master)
    popped = await consumer.pop(max_msg_nums=4, invisible_time=2_000)
    assert await consumer.ack(popped[0][1]) == 0
    settings = master.core.store.settings
    await asyncio.to_thread(take_backup, settings, tmp_path / "backup", now_ms=now_ms)
    assert await consumer.ack(popped[1][1]) == 0
    await pairs.stop(master)
    await asyncio.to_thread(
        restore_backup, tmp_path / "backup", replace(settings, root=tmp_path / "restored")
    )

    restored = await pairs.start("restored", **FAST)

    bodies: list[bytes] = []

    async def has_all() -> bool:
        bodies.extend(message.body for message, _ in await PopClient(client, restored).pop())
        return len(bodies) >= 5

    async with asyncio.timeout(LIMIT_S):
        while not await has_all():
            await asyncio.sleep(0.05)
    assert bodies[:2] == [b"4", b"5"]
    assert sorted(bodies) == [b"1", b"2", b"3", b"4", b"5"]


async def test_operators_see_messages_in_flight_and_groups_that_mix_pulls_and_pops(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 6)
    consumer, pop = PopClient(client, master), master.features.pop
    await consumer.pop(max_msg_nums=1)
    await consumer.pop(max_msg_nums=1)
    figures = pop.figures()
    assert (figures.in_flight, figures.check_points, figures.mixed) == (2, 2, [])
    assert 0 <= figures.oldest_ms < 60_000
    assert figures.behind_ms == 0

    assert await pairs.consume(GROUP, TOPIC, 1) == [b"2"]
    await consumer.pop(max_msg_nums=1)

    async with AdminClient(pairs.name_server.address) as admin:
        table = await admin.broker_runtime_info(master.address)
    assert table["popMixedModes"] == f"{GROUP}@{TOPIC}"
    assert table["popInFlight"] == "3"


async def test_a_group_changes_between_pull_and_pop_and_skips_nothing(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 6)
    address = pairs.name_server.address
    assert await pairs.consume(GROUP, TOPIC, 2) == [b"0", b"1"]
    consumer = PopClient(client, master)
    assert await set_mode(client, master, GROUP) == 0
    found = await consumer.pop(max_msg_nums=2)
    assert [message.body for message, _ in found] == [b"2", b"3"]
    for _, handle in found:
        assert await consumer.ack(handle) == 0

    bodies = []
    async with PullConsumer(
        address, group=GROUP, subscriptions={TOPIC: "*"}, start_from=StartFrom.FIRST
    ) as pulling:
        async for message in pulling:
            bodies.append(message.body)
            if len(bodies) == 2:
                break
    assert bodies == [b"4", b"5"]


async def test_a_pop_of_very_many_queues_finds_all_of_them_and_lets_others_go_on(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 0)
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.create_topic("wide", queues=20_000)
    async with Producer(pairs.name_server.address, group="p") as producer:
        for number in (0, 255, 256, 19_999):
            queue = MessageQueue("wide", master.core.settings().broker_name, number)
            await producer.send(Message("wide", b"%d" % number), queue=queue)
    consumer, others = PopClient(client, master, topic="wide"), RemotingClient()
    for request in (consumer.peek, consumer.request):
        running = asyncio.ensure_future(request())
        count = 0
        while not running.done():
            await PopClient(others, master).request()
            count += 1
        response = running.result()
        assert response.code == 0
        found = [message.body for message in decode_messages(response.body)]
        assert sorted(found, key=int) == [b"0", b"255", b"256", b"19999"]
        assert count > 3
    await others.close()
    assert master.features.pop.figures().in_flight == 4


async def test_pops_that_come_together_deliver_each_message_once_or_give_it_back(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 100)
    consumer, appender = PopClient(client, master), master.core.store.appender
    appender.refusal = "the disk is full"
    refused = await asyncio.gather(*(consumer.request(max_msg_nums=3) for _ in range(40)))
    assert {each.code for each in refused} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert "the disk is full" in (refused[0].remark or "")
    assert master.features.pop.figures().in_flight == 0
    appender.refusal = None
    popped = await asyncio.gather(*(consumer.pop(max_msg_nums=3) for _ in range(40)))
    bodies = [int(message.body) for each in popped for message, _ in each]
    assert sorted(bodies) == list(range(100))
    assert master.features.pop.figures().in_flight == 100
    acks = [consumer.ack(handle) for each in popped for _, handle in each]
    assert set(await asyncio.gather(*acks)) == {0}
    assert master.features.pop.figures().in_flight == 0


async def test_a_pop_that_matches_nothing_reads_on_behind_what_it_has_passed(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 0)
    async with Producer(pairs.name_server.address, group="p") as producer:
        for _ in range(3):
            others = [Message(TOPIC, b"other", tags="a") for _ in range(1_000)]
            await producer.send_batch(others)
        await producer.send(Message(TOPIC, b"the one", tags="b"))
    found = await PopClient(client, master).pop(exp="b", poll_time=3_000)
    assert [message.body for message, _ in found] == [b"the one"]


async def test_a_burst_of_pops_keeps_the_limit_of_messages_in_flight(
    pairs: Pairs, client: RemotingClient
) -> None:
    limit = {"enablePopMessageThreshold": "true", "popInflightMessageThreshold": "5"}
    master = await prepared(pairs, 30, **limit)
    consumer = PopClient(client, master)
    await consumer.request(max_msg_nums=0)  # the check points are loaded now
    popped = await asyncio.gather(*(consumer.pop(max_msg_nums=3) for _ in range(10)))
    assert sorted(map(len, popped)) == [0] * 8 + [3, 3]
    assert master.features.pop.figures().in_flight == 6
    held = asyncio.ensure_future(consumer.pop(max_msg_nums=3, poll_time=60_000))
    await until(lambda: master.features.pop.figures().held == 1)
    (_, handle), *_ = next(found for found in popped if found)
    async with asyncio.timeout(LIMIT_S / 2):
        assert await consumer.ack(handle) == 0
        assert len(await held) == 3


async def test_a_held_pop_of_a_burst_that_is_not_stored_runs_again(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 3)
    consumer, appender = PopClient(client, master), master.core.store.appender
    await consumer.request(max_msg_nums=0)  # the check points are loaded now
    appender.refusal = "the disk is full"
    async with asyncio.timeout(LIMIT_S / 2):
        refused = await asyncio.gather(*(consumer.request(poll_time=60_000) for _ in range(3)))
    assert {each.code for each in refused} == {ResponseCode.SERVICE_NOT_AVAILABLE}


async def test_pops_that_come_while_the_broker_stops_lose_nothing(
    pairs: Pairs, client: RemotingClient
) -> None:
    count = 300
    master = await prepared(pairs, count)
    consumer = PopClient(client, master)
    coming = [asyncio.ensure_future(consumer.pop(max_msg_nums=3)) for _ in range(80)]
    await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
    coming += [asyncio.ensure_future(consumer.pop(max_msg_nums=3)) for _ in range(20)]
    await pairs.stop(master)
    ended = await asyncio.gather(*coming, return_exceptions=True)
    popped = [each for found in ended if isinstance(found, list) for each in found]
    unanswered = [each for each in ended if isinstance(each, BaseException)]
    assert all(isinstance(each, CometError) for each in unanswered)

    master = await pairs.start("master", **FAST)
    consumer = PopClient(client, master)
    bodies = [message.body for message, _ in popped]
    while found := await consumer.pop():
        bodies += [message.body for message, _ in found]
    in_flight = master.features.pop.figures().in_flight
    assert len(bodies) == len(set(bodies))
    assert len(bodies) <= in_flight == count


class HeldDisk(ColdDisk):
    """A disk that reads nothing for a time."""

    def __init__(self) -> None:
        super().__init__()
        self.may_read = threading.Event()

    def begin_read(self, path: Path, start: int, stop: int) -> None:
        """Wait until the disk reads."""
        self.may_read.wait(LIMIT_S)
        super().begin_read(path, start, stop)

    def end_read(self, read: ColdRead) -> None:
        """Note a part once, however many pops read it."""
        if all(read[:3] != each[:3] for each in self.reads):
            super().end_read(read)


async def cold(pairs: Pairs, count: int) -> tuple[Broker, HeldDisk]:
    """A master whose messages are on the disk only."""
    await pairs.stop(await prepared(pairs, count))
    disk = pairs.disks["master"] = HeldDisk()
    disk.may_read.set()
    master = await pairs.start("master", **FAST)
    disk.reads.clear()
    return master, disk


async def test_pops_of_a_cold_backlog_that_come_together_get_different_messages(
    pairs: Pairs, client: RemotingClient
) -> None:
    master, disk = await cold(pairs, 256)
    consumer = PopClient(client, master)
    popped = await asyncio.gather(*(consumer.pop(poll_time=3_000) for _ in range(8)))
    assert disk.reads
    parts = [[int(message.body) for message, _ in each] for each in popped]
    assert sorted(parts) == [list(range(start, start + 32)) for start in range(0, 256, 32)]


async def test_pops_wait_for_the_disk_in_a_limited_number(
    pairs: Pairs, client: RemotingClient
) -> None:
    master, disk = await cold(pairs, 8)
    consumer = PopClient(client, master)
    disk.may_read.clear()
    coming = [consumer.request(max_msg_nums=1) for _ in range(DISK_WAITS_MAX + 1)]
    waiting = [asyncio.ensure_future(each) for each in coming]
    (refused,), others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    disk.may_read.set()
    assert refused.result().code == ResponseCode.POLLING_FULL
    assert refused.result().remark == f"{DISK_WAITS_MAX} pops wait for the disk"
    responses = await asyncio.gather(*others)
    assert {response.code for response in responses} == {0, ResponseCode.POLLING_TIMEOUT}
    popped = [message for each in responses for message in decode_messages(each.body)]
    popped += [message for message, _ in await consumer.pop()]
    assert sorted(int(message.body) for message in popped) == list(range(8))


async def test_a_large_batch_of_acknowledgements_is_stored_in_parts(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 300)
    consumer, figures = PopClient(client, master), master.features.pop.figures
    handles = [(await consumer.pop(max_msg_nums=1))[0][1] for _ in range(300)]
    running = asyncio.ensure_future(consumer.ack_together(*handles))
    seen = set()
    while not running.done():
        seen.add(figures().in_flight)
        await asyncio.sleep(0)
    assert await running == 0
    assert figures().in_flight == 0
    assert len(seen) > 3


async def test_nothing_of_a_deleted_topic_is_delivered_when_it_is_created_again(
    pairs: Pairs, client: RemotingClient
) -> None:
    """The new messages have the offsets of those that were popped before."""
    master = await prepared(pairs, 4)
    consumer = PopClient(client, master)
    await set_mode(client, master, GROUP)
    assert len(await consumer.pop(max_msg_nums=1, invisible_time=100)) == 1
    await until(lambda: master.features.pop.figures().revived == 1)
    retry = retry_topic_of(GROUP, TOPIC, is_second_form=False)
    assert retry in master.core.topics
    assert len(await consumer.pop(invisible_time=1_000)) == 4
    held = asyncio.ensure_future(consumer.request(queue_id=0, poll_time=60_000))
    await until(lambda: master.features.pop.figures().held == 1)

    async with AdminClient(pairs.name_server.address) as admin:
        await admin.delete_topic(TOPIC)
        assert (await held).code == ResponseCode.TOPIC_NOT_EXIST
        assert retry not in master.core.topics
        assert master.features.pop.figures().in_flight == 0
        assert await modes(client, master) == {}
        await admin.create_topic(TOPIC, queues=1)
    async with Producer(pairs.name_server.address, group="p") as producer:
        for number in range(4):
            await producer.send(Message(topic=TOPIC, body=b"new %d" % number))
    new = await consumer.pop(max_msg_nums=3, invisible_time=60_000)
    assert [message.body for message, _ in new] == [b"new 0", b"new 1", b"new 2"]
    # Is due after those of before the deletion.
    assert len(await consumer.pop(invisible_time=1_000)) == 1
    await until(lambda: master.features.pop.figures().in_flight == 3)
    assert master.features.pop.figures().revived == 2


async def test_a_retry_topic_that_others_may_use_stays_when_a_topic_is_deleted(
    pairs: Pairs, client: RemotingClient
) -> None:
    """The first form of its name joins group and topic with a sign that both may contain."""
    master = await prepared(pairs, 1)
    retry = retry_topic_of(GROUP, TOPIC, is_second_form=False)
    assert len(await PopClient(client, master).pop(invisible_time=100)) == 1
    await until(lambda: retry in master.core.topics)
    await master.core.groups.create_all([f"{GROUP}_{TOPIC}"])
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.delete_topic(TOPIC)
        assert retry in master.core.topics


async def test_a_deleted_group_leaves_no_mode_and_no_held_pop(
    pairs: Pairs, client: RemotingClient
) -> None:
    """The held pop does not create the group again; the next pop of a member does."""
    master = await prepared(pairs, 0)
    consumer = PopClient(client, master)
    await set_mode(client, master, GROUP)
    await set_mode(client, master, "other")
    held = asyncio.ensure_future(consumer.request(poll_time=60_000))
    await until(lambda: master.features.pop.figures().held == 1)
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.delete_group(GROUP)
    response = await held
    assert (response.code, response.remark) == (ResponseCode.POLLING_TIMEOUT, GROUP_DELETED)
    assert master.core.groups.get(GROUP) is None
    assert (await modes(client, master))[TOPIC].keys() == {"other"}
    assert await consumer.pop() == []
    assert master.core.groups.get(GROUP) is not None


async def test_an_export_of_check_points_to_the_log_has_nothing_to_do(
    pairs: Pairs, client: RemotingClient
) -> None:
    """RocketMQ's `exportPopRecord`; they are in the log."""
    master = await prepared(pairs, 1)
    assert len(await PopClient(client, master).pop()) == 1
    assert (await client.call(master.address, RequestCode.POP_ROLLBACK, timeout=LIMIT_S)).code == 0
    assert master.features.pop.figures().in_flight == 1


async def test_ten_thousand_held_pops_get_one_message_each_and_the_rest_their_time(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await prepared(pairs, 0, popPollingSize="20000")
    consumer = PopClient(client, master)
    count, served = 10_000, 50
    waiting = [
        asyncio.ensure_future(consumer.request(max_msg_nums=1, poll_time=60_000))
        for _ in range(count)
    ]
    held = PollingInfoRequest(consumer_group=GROUP, topic=TOPIC, queue_id=-1)

    async def number() -> int:
        response = await client.call(
            master.address, RequestCode.POLLING_INFO, held, timeout=LIMIT_S
        )
        return response.header(PollingInfoResponse).polling_num

    async with asyncio.timeout(LIMIT_S):
        while await number() < count:
            await asyncio.sleep(0.05)
    async with Producer(pairs.name_server.address, group="p") as producer:
        for each in range(served):
            await producer.send(Message(topic=TOPIC, body=b"%d" % each))
    await until(lambda: sum(each.done() for each in waiting) >= served)
    responses = [each.result() for each in waiting if each.done()]
    bodies = [decode_messages(response.body)[0].body for response in responses]
    assert sorted(map(int, bodies)) == list(range(served))
    assert await number() == count - served
    master.features.pop.parts.get().held.close()
    assert {(await each).code for each in waiting if each not in responses} >= {0, 210}
