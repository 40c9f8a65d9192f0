"""Finds messages by key, id and offset, and tracks their consumption."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    ConfigError,
    ConsumeLater,
    LocalState,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ResponseError,
    StoredMessage,
    TransactionProducer,
)
from cometmq.client.admin import TrackKind
from cometmq.client.trace.records import ConsumeAfter, Publish, encode_trace_record
from support.checks.waiting import until
from support.clients.consumer_inputs import from_the_first

FOUND_S = 120.0


@pytest.fixture
async def message(
    admin: AdminClient, instance: ClientInstance, queues: list[MessageQueue]
) -> StoredMessage:
    """A message with a tag and keys, the second of its queue, as the broker stores it."""
    async with Producer(instance=instance, group="admin-tests") as producer:
        for body in (b"first", b"second"):
            receipt = await producer.send(
                Message(queues[0].topic, body, tags="red", keys=["k1", f"only-{body.decode()}"]),
                queue=queues[0],
            )

    async def stored() -> bool:
        found = await admin.messages_by_key(queues[0].topic, "k1")
        return len(found) == 2 and await admin.message_in_queue(queues[0], 1) is not None

    await until(stored)
    return await admin.message_at(receipt.offset_message_id)


# --- the four kinds of queries ------------------------------------------------------------------


async def test_a_message_is_found_by_its_place_in_the_log(
    message: StoredMessage, queues: list[MessageQueue]
) -> None:
    assert (message.body, message.tags, message.queue) == (b"second", "red", queues[0])


async def test_a_message_is_found_by_its_unique_id(
    admin: AdminClient, message: StoredMessage
) -> None:
    found = await admin.message_by_unique_id(message.topic, message.message_id)

    assert found == message
    assert await admin.message_by_unique_id(message.topic, "0" * 32) is None


async def test_messages_are_found_by_their_keys_in_the_order_they_were_stored(
    admin: AdminClient, message: StoredMessage
) -> None:
    found = await admin.messages_by_key(message.topic, "k1")

    assert [one.body for one in found] == [b"first", b"second"]
    assert await admin.messages_by_key(message.topic, "only-second") == [message]
    assert await admin.messages_by_key(message.topic, "k3") == []
    assert await admin.messages_by_key(message.topic, "k1", end=10**11) == []


async def test_a_message_is_found_by_its_place_in_a_queue(
    admin: AdminClient, message: StoredMessage, queues: list[MessageQueue]
) -> None:
    found = await admin.message_in_queue(queues[0], 1)

    assert found is not None
    assert (found.body, found.message_id) == (b"second", message.message_id)
    assert await admin.message_in_queue(queues[0], 2) is None
    assert await admin.message_in_queue(queues[1], 0) is None


async def test_messages_of_a_queue_are_pulled_without_a_group(
    admin: AdminClient, message: StoredMessage, queues: list[MessageQueue]
) -> None:
    first = await admin.pull(queues[0], 0, filter="red || blue", count=1)
    rest = await admin.pull(queues[0], first.next_offset)
    other = await admin.pull(queues[0], 0, filter="blue")

    assert [each.body for each in first.messages] == [b"first"]
    assert (first.next_offset, first.max_offset) == (1, 2)
    assert [each.message_id for each in rest.messages] == [message.message_id]
    assert (other.messages, other.next_offset) == ([], 2)


async def test_a_message_is_sent_without_a_producer(
    admin: AdminClient, queues: list[MessageQueue]
) -> None:
    receipt = await admin.send(
        Message(queues[0].topic, b"test", tags="red", keys=["k9"], properties={"note": "a"})
    )

    async def found() -> bool:
        return await admin.message_in_queue(receipt.queue, receipt.queue_offset) is not None

    await until(found)
    stored = await admin.message_at(receipt.offset_message_id)
    assert (stored.body, stored.tags, stored.keys) == (b"test", "red", ["k9"])
    assert (stored.properties["note"], stored.message_id) == ("a", receipt.message_id)


async def test_a_message_that_is_not_there_is_refused(
    admin: AdminClient, message: StoredMessage
) -> None:
    beyond = message.offset_message_id[:16] + "00000FFFFFFFFFFF"

    with pytest.raises(ResponseError):
        await admin.message_at(beyond)


async def test_messages_of_a_time_range_are_read_page_by_page_in_order(
    admin: AdminClient, instance: ClientInstance, queues: list[MessageQueue]
) -> None:
    topic, bodies = queues[0].topic, [str(number).encode() for number in range(12)]
    async with Producer(instance=instance, group="admin-tests") as producer:
        for number, body in enumerate(bodies):
            await producer.send(Message(topic, body), queue=queues[number % 3])
            await asyncio.sleep(0.002)  # store times differ, so that their order is known

    async def stored() -> list[StoredMessage]:
        return (await admin.messages_by_time(topic)).messages

    await until(lambda: _has(stored, 12))
    every = await stored()
    assert [each.body for each in every] == bodies

    since, until_ms = every[3].store_time_ms, every[10].store_time_ms
    page = await admin.messages_by_time(topic, since=since, until=until_ms, limit=5)
    rest = await admin.messages_by_time(topic, since=since, until=until_ms, ranges=page.rest)
    assert [each.body for each in page.messages + rest.messages] == bodies[3:10]
    assert rest.rest == {}
    of_one = await admin.messages_by_time(topic, queues=[queues[1]])
    assert [each.body for each in of_one.messages] == bodies[1::3]
    with pytest.raises(ConfigError, match="limit=0: expected 1 to"):
        await admin.messages_by_time(topic, limit=0)


async def _has(read: Callable[[], Awaitable[list[StoredMessage]]], count: int) -> bool:
    return len(await read()) == count


async def test_a_half_message_is_shown_until_it_is_decided(
    admin: AdminClient, instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    """RocketMQ stores decisions up to three seconds later."""
    state = LocalState.UNKNOWN

    class Listener:
        async def execute(self, message: Message, argument: object) -> LocalState:
            return state

        async def check(self, message: StoredMessage) -> LocalState:
            return state

    async def waiting() -> list[str]:
        found = await admin.half_messages(queues[0].broker_name)
        return [each.message_id for each in found.messages if each.properties["PGROUP"] == group]

    async with TransactionProducer(instance=instance, group=group, listener=Listener()) as producer:
        undecided = await producer.send_in_transaction(Message(queues[0].topic, b"undecided"))
        state = LocalState.COMMIT
        await producer.send_in_transaction(Message(queues[0].topic, b"committed"))

        async def only_one() -> bool:
            return await waiting() == [undecided.receipt.message_id]

        await until(only_one)


# --- who consumed it ----------------------------------------------------------------------------


async def kind_of(admin: AdminClient, message: StoredMessage, group: str) -> TrackKind:
    """What is told of one group."""
    (track,) = await admin.track(message, [group])
    return track.kind


async def nothing(message: StoredMessage) -> None:
    """Handle a message."""


async def test_nobody_has_consumed_a_message_that_nobody_reads(
    admin: AdminClient, message: StoredMessage
) -> None:
    assert await admin.track(message) == []


async def test_a_group_has_consumed_what_lies_before_its_offset(
    admin: AdminClient, instance: ClientInstance, message: StoredMessage, group: str
) -> None:
    async with PushConsumer(
        instance=instance, handler=nothing, **from_the_first(group, message.topic), persist_ms=100
    ):

        async def consumed() -> bool:
            return await kind_of(admin, message, group) is TrackKind.CONSUMED

        await until(consumed)
        assert [track.group for track in await admin.track(message)] == [group]

    async def gone() -> bool:
        return await kind_of(admin, message, group) is TrackKind.NOT_ONLINE

    await until(gone)


async def test_a_group_that_wants_other_tags_has_consumed_it_only_in_name(
    admin: AdminClient, instance: ClientInstance, message: StoredMessage, group: str
) -> None:
    async with PushConsumer(
        instance=instance,
        handler=nothing,
        **from_the_first(group, message.topic, "blue"),
        persist_ms=100,
    ):

        async def filtered() -> bool:
            return await kind_of(admin, message, group) is TrackKind.CONSUMED_BUT_FILTERED

        await until(filtered)


async def test_a_group_whose_handler_is_at_it_has_not_consumed_it_yet(
    admin: AdminClient, instance: ClientInstance, message: StoredMessage, group: str
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(message: StoredMessage) -> None:
        begun.set()
        await may_end.wait()

    async with PushConsumer(
        instance=instance, handler=slow, **from_the_first(group, message.topic), persist_ms=100
    ):
        async with asyncio.timeout(FOUND_S):
            await begun.wait()

        assert await kind_of(admin, message, group) is TrackKind.NOT_CONSUME_YET
        may_end.set()


async def test_the_copies_of_redelivery_are_found(
    admin: AdminClient, instance: ClientInstance, message: StoredMessage, group: str
) -> None:
    async def fail(message: StoredMessage) -> None:
        raise ConsumeLater(delay_level=1)

    async with PushConsumer(
        instance=instance, handler=fail, retries_max=1, **from_the_first(group, message.topic)
    ):

        async def dead() -> bool:
            return bool((await admin.redelivery(group, message)).dead_letters)

        await until(dead)
    found = await admin.redelivery(group, message)
    assert [each.reconsume_times for each in found.retries] == [1]
    assert [each.unique_id for each in found.dead_letters] == [message.unique_id]
    assert found.scheduled == []
    other = await admin.redelivery(f"{group}-other", message)
    assert (other.retries, other.dead_letters) == ([], [])


async def test_of_groups_that_pull_or_hear_broadcasts_offsets_tell_nothing(
    admin: AdminClient,
    instance: ClientInstance,
    name_servers: str,
    message: StoredMessage,
    group: str,
    tmp_path: object,
) -> None:
    wanted = {message.topic: "*"}
    async with (
        PullConsumer(instance=instance, group=f"{group}-pull", subscriptions=wanted),
        PushConsumer(
            name_servers,
            group=f"{group}-all",
            handler=nothing,
            broadcast=True,
            subscriptions=wanted,
            offset_folder=str(tmp_path),
        ),
    ):

        async def told() -> bool:
            groups = [f"{group}-pull", f"{group}-all"]
            kinds = {track.group: track.kind for track in await admin.track(message, groups)}
            return kinds == {
                f"{group}-pull": TrackKind.PULL,
                f"{group}-all": TrackKind.BROADCAST,
            }

        await until(told)


async def test_a_message_is_followed_by_what_was_traced_of_it(
    admin: AdminClient, instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    done = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        done.set()

    async with PushConsumer(
        instance=instance, handler=handle, **from_the_first(group, queues[0].topic), trace=True
    ):
        async with Producer(instance=instance, group=f"{group}-p", trace=True) as producer:
            receipt = await producer.send(Message(queues[0].topic, b"x"), queue=queues[0])
        async with asyncio.timeout(FOUND_S):
            await done.wait()

    async def both() -> bool:
        records = await admin.trace(receipt.message_id)
        return {Publish, ConsumeAfter} <= {type(record) for record in records}

    await until(both)
    (sent,) = [r for r in await admin.trace(receipt.message_id) if isinstance(r, Publish)]
    assert (sent.group, sent.topic, sent.success) == (f"{group}-p", queues[0].topic, True)


async def test_records_of_a_trace_that_cannot_be_read_are_passed_over(
    admin: AdminClient, instance: ClientInstance, queues: list[MessageQueue]
) -> None:
    """One client's error hides no record of another one in the same trace message."""
    good = ConsumeAfter("R", "ID-1", 3, True, None, time_ms=5, group="g")
    bad = encode_trace_record(good).replace("\x013\x01", "\x01three\x01")
    body = bad.encode() + b"\xff\x02" + encode_trace_record(good).encode()
    topic = queues[0].topic
    async with Producer(instance=instance, group="admin-tests") as producer:
        await producer.send(Message(topic, body, keys=["ID-1"]))

    async def found() -> bool:
        return bool(await admin.trace("ID-1", topic=topic))

    await until(found)
    assert await admin.trace("ID-1", topic=topic) == [good]
