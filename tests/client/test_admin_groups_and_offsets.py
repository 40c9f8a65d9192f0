"""Groups and committed offsets, as an administrator sees and changes them."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ResponseError,
    StartFrom,
)
from cometmq.client.errors import InvalidNameError
from cometmq.model.group import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from support.clients.stored_messages import until_queued

FOUND_S = 120.0


@pytest.fixture
async def broker(admin: AdminClient) -> str:
    """The address of the only broker."""
    ((_, broker),) = (await admin.cluster_info()).broker_addr_table.items()
    return broker.broker_addrs[0]


@pytest.fixture
async def read(
    instance: ClientInstance, admin: AdminClient, queues: list[MessageQueue], group: str
) -> MessageQueue:
    """A queue with ten messages, of which the group has committed four.

    It was read without pulls that the broker holds: one that is still held when its consumer is
    gone could take an offset that is meant for the group's next member.
    """
    queue = queues[0]
    async with Producer(instance=instance, group="admin-tests") as producer:
        for number in range(10):
            await producer.send(Message(queue.topic, str(number).encode()), queue=queue)
    await until_queued(admin, queue.topic, 10)
    async with PullConsumer(
        instance=instance, group=group, start_from=StartFrom.FIRST, hold_ms=0
    ) as reader:
        await reader.assign([queue])
        async with asyncio.timeout(FOUND_S):
            for _ in range(4):
                await anext(reader)
        await reader.commit()
    return queue


async def test_a_group_is_made_shown_changed_and_deleted(
    admin: AdminClient, broker: str, group: str
) -> None:
    await admin.create_group(SubscriptionGroupConfig(group_name=group, retry_max_times=3))
    assert group in await admin.groups()
    config = await admin.group_config(group, broker)
    assert config is not None
    assert (config.retry_max_times, config.retry_queue_nums) == (3, 1)

    config.retry_max_times = 7
    await admin.create_group(config)
    assert (await admin.broker_groups(broker))[group].retry_max_times == 7

    await admin.delete_group(group)
    assert group not in await admin.groups()


@pytest.mark.only_on("comet", "5.3.3")
@pytest.mark.parametrize(
    "policy",
    [
        GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[1_000, 5_000])),
        GroupRetryPolicy(
            type="EXPONENTIAL",
            exponential_retry_policy=ExponentialRetryPolicy(initial=1, max=9, multiplier=3),
        ),
        GroupRetryPolicy(),
    ],
    ids=["customized", "exponential", "default"],
)
async def test_the_retry_policy_of_a_group_is_kept(
    admin: AdminClient, broker: str, group: str, policy: GroupRetryPolicy
) -> None:
    config = SubscriptionGroupConfig(group_name=group, group_retry_policy=policy)
    await admin.create_group(config)
    shown = await admin.group_config(group, broker)
    assert shown is not None
    assert shown.group_retry_policy == policy


async def test_a_group_without_a_valid_name_is_refused(admin: AdminClient) -> None:
    with pytest.raises(InvalidNameError):
        await admin.create_group("no blanks")


async def test_a_group_may_be_kept_from_reading_a_topic(
    admin: AdminClient, target: str, group: str, topic: str
) -> None:
    await admin.create_group(group)
    if target == "4.9.7":
        with pytest.raises(ResponseError):
            await admin.may_read(group, topic)
        with pytest.raises(ResponseError):
            await admin.set_may_read(group, topic, allowed=False)
        return
    assert await admin.may_read(group, topic)
    await admin.set_may_read(group, topic, allowed=False)
    assert not await admin.may_read(group, topic)
    await admin.set_may_read(group, topic, allowed=True)
    assert await admin.may_read(group, topic)


async def test_groups_and_topics_know_of_each_other(
    admin: AdminClient, target: str, read: MessageQueue, group: str
) -> None:
    assert await admin.groups_of_topic(read.topic) == [group]
    if target == "4.9.7":
        with pytest.raises(ResponseError):
            await admin.topics_of_group(group)
    else:
        assert read.topic in await admin.topics_of_group(group)


async def test_a_subscription_is_shown_while_somebody_is_online(
    admin: AdminClient, instance: ClientInstance, target: str, topic: str, group: str
) -> None:
    async with PullConsumer(instance=instance, group=group, subscriptions={topic: "a || b"}):
        if target == "4.9.7":
            with pytest.raises(ResponseError):
                await admin.subscription(group, topic)
            return
        found = await admin.subscription(group, topic)

    assert found is not None
    assert set(found.tags_set) == {"a", "b"}


async def test_the_lag_of_a_group_in_each_queue(
    admin: AdminClient, read: MessageQueue, queues: list[MessageQueue], group: str
) -> None:
    lag = await admin.lag(group, read.topic)

    assert lag[read].committed == 4
    assert (lag[read].begin, lag[read].end, lag[read].lag) == (0, 10, 6)
    assert lag[queues[1]].lag == 0


async def test_brokers_tell_the_offsets_they_know_of_a_group(
    admin: AdminClient, read: MessageQueue, group: str, broker: str
) -> None:
    stats = await admin.consume_stats(group)
    assert (stats[read].consumer_offset, stats[read].broker_offset) == (4, 10)
    assert await admin.consume_stats(group, read.topic) == stats

    spans = {span.message_queue: span for span in await admin.time_spans(group, read.topic)}
    assert 0 < spans[read].min_time_stamp <= spans[read].max_time_stamp

    everybody = await admin.broker_lag(broker)
    assert any(group in part for part in everybody.consume_stats_list)


async def test_a_group_without_members_goes_on_at_a_time(
    admin: AdminClient, read: MessageQueue, group: str
) -> None:
    seventh = await admin.message_in_queue(read, 7)
    assert seventh is not None

    moved = await admin.reset_to_time(group, read.topic, seventh.store_time_ms)

    assert moved[read] <= 7
    first = await admin.message_in_queue(read, moved[read])
    assert first is not None
    assert first.store_time_ms == seventh.store_time_ms
    assert (await admin.committed(group, read.topic))[read] == moved[read]


async def test_a_group_skips_what_it_has_not_read(
    admin: AdminClient, read: MessageQueue, group: str
) -> None:
    assert (await admin.skip_backlog(group, read.topic))[read] == 10

    assert (await admin.lag(group, read.topic))[read].lag == 0


async def test_a_group_goes_on_at_an_offset_of_one_queue(
    admin: AdminClient, instance: ClientInstance, read: MessageQueue, group: str
) -> None:
    await admin.reset_to_offset(group, read, 2)

    async with PullConsumer(instance=instance, group=group) as reader:
        await reader.assign([read])
        async with asyncio.timeout(FOUND_S):
            assert (await anext(reader)).body == b"2"


async def test_a_member_that_is_online_moves_when_its_group_is_reset(
    admin: AdminClient, instance: ClientInstance, read: MessageQueue, group: str
) -> None:
    wanted = {read.topic: "*"}
    async with PullConsumer(instance=instance, group=group, subscriptions=wanted) as reader:
        async with asyncio.timeout(FOUND_S):
            while (await anext(reader)).body != b"9":
                pass
            await reader.commit()

            await admin.reset_to_time(group, read.topic, 0)
            async with Producer(instance=instance, group="admin-tests") as producer:
                await producer.send(Message(read.topic, b"new"), queue=read)
            while (await anext(reader)).body != b"0":
                pass
            assert (await anext(reader)).body == b"1"


async def test_a_group_stands_where_another_one_stands(
    admin: AdminClient, read: MessageQueue, group: str
) -> None:
    await admin.create_group(f"{group}-2")
    await admin.clone_offsets(group, f"{group}-2", [read.topic])

    assert (await admin.committed(f"{group}-2", read.topic))[read] == 4
