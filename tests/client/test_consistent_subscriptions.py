"""Members of a group with different subscriptions are named, with the difference."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Filter,
    MessageQueue,
    PushConsumer,
    StoredMessage,
)
from cometmq.client._connection.instance import ClientCore, core_of
from cometmq.client.settings import ClientSettings
from cometmq.client.subscription_check import Difference, SubscriptionCheck, check
from support.checks.cancellation import cancel_at_every_await
from support.clients.members import SilentConsumer

NOTICED_S = 120.0
GROUPS_TABLE = ""
"""Real brokers do not tell who: their answer is the group's table."""


async def handle(message: StoredMessage) -> None: ...


def member(
    name_servers: str, group: str, subscriptions: dict[str, str], **options: int
) -> PushConsumer:
    return PushConsumer(
        name_servers, group=group, handler=handle, subscriptions=subscriptions, **options
    )


async def found_in_time(
    instance: ClientInstance, group: str, mine: dict[str, Filter], theirs: str | None
) -> Difference:
    """Wait for one difference with this expression: heartbeats are on their way."""
    async with asyncio.timeout(NOTICED_S):
        while True:
            found = await check(instance, group, mine)
            if [difference.theirs for difference in found] == [theirs]:
                return found[0]
            await asyncio.sleep(0.05)


async def test_member_with_another_filter_is_named(
    name_servers: str, queues: list[MessageQueue], group: str, target: str
) -> None:
    topic = queues[0].topic
    async with (
        ClientInstance(name_servers) as instance,
        PushConsumer(instance=instance, group=group, handler=handle, subscriptions={topic: "paid"}),
        member(name_servers, group, {topic: "new || paid"}) as other,
    ):
        mine = {topic: Filter.tags("paid")}
        found = await found_in_time(instance, group, mine, "new || paid")

    assert (found.topic, found.theirs, found.mine) == (topic, "new || paid", "paid")
    assert found.client_id == (other.client_id if target == "comet" else GROUPS_TABLE)


async def test_topic_that_only_one_member_subscribes_is_told(
    name_servers: str, queues: list[MessageQueue], group: str, target: str
) -> None:
    topic = queues[0].topic
    async with (
        ClientInstance(name_servers) as instance,
        member(name_servers, group, {topic: "*"}) as other,
    ):
        await core_of(instance).routes.find(topic)
        mine = {topic: Filter.tags("*"), "nobody-else": Filter.tags("a")}
        found = await found_in_time(instance, group, mine, None)

    assert (found.topic, found.theirs, found.mine) == ("nobody-else", None, "a")
    assert found.client_id == (other.client_id if target == "comet" else GROUPS_TABLE)


async def test_members_that_agree_are_not_mentioned(
    name_servers: str, queues: list[MessageQueue], group: str
) -> None:
    topic = queues[0].topic
    async with (
        ClientInstance(name_servers) as instance,
        member(name_servers, group, {topic: "b || a"}),
    ):
        await core_of(instance).routes.find(topic)
        await found_in_time(instance, group, {topic: Filter.tags("c")}, "b || a")

        assert await check(instance, group, {topic: Filter.tags("a || b")}) == []


async def test_group_that_nobody_knows_has_no_differences(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    topic = queues[0].topic
    await core_of(instance).routes.find(topic)

    assert await check(instance, group, {topic: Filter.tags("*")}) == []


async def test_namespace_is_taken_off_what_is_told(name_servers: str, group: str) -> None:
    settings, topic = ClientSettings(namespace="north"), f"{group}-topic"
    async with (
        ClientInstance(name_servers, settings=settings) as instance,
        ClientInstance(name_servers, settings=settings) as watcher,
    ):
        wrapped = core_of(instance).namespace.wrap_topic(topic)
        async with AdminClient(instance=instance) as admin:
            await admin.create_topic(wrapped, queues=1)
        async with PushConsumer(
            instance=instance, group=group, handler=handle, subscriptions={topic: "a"}
        ):
            mine = {topic: Filter.tags("b")}
            await core_of(watcher).routes.find(wrapped)
            found = await found_in_time(watcher, group, mine, "a")

    assert (found.topic, found.theirs, found.mine) == (topic, "a", "b")


async def test_watch_logs_a_set_of_differences_once(
    name_servers: str,
    queues: list[MessageQueue],
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = queues[0].topic
    mine = {topic: Filter.tags("paid")}
    caplog.set_level(logging.INFO, "cometmq.client.subscription_check")
    async with (
        ClientInstance(name_servers) as instance,
        member(name_servers, group, {topic: "new"}),
    ):
        await core_of(instance).routes.find(topic)
        watch = SubscriptionCheck(core_of(instance), group, lambda: mine)
        await found_in_time(instance, group, mine, "new")
        for _ in range(3):
            assert len(await watch.look()) == 1
        mine[topic] = Filter.tags("new")
        await watch.look()

        assert watch.subscription_mismatches() == []
    told = [r.message for r in caplog.records if r.name == "cometmq.client.subscription_check"]
    assert len(told) == 2
    assert f"topic {topic}: theirs 'new', mine 'paid'" in told[0]
    assert told[1].startswith("all members of a group have the same subscriptions again")


@pytest.mark.only_on("comet")
async def test_consumer_finds_out_by_itself(
    name_servers: str, queues: list[MessageQueue], group: str
) -> None:
    """A subscription that changes is compared soon, without waiting for the next round.

    On RocketMQ the one who changed is the group's table, so that the others find out in their turn.
    """
    topic = queues[0].topic
    async with (
        member(name_servers, group, {topic: "new"}),
        member(name_servers, group, {topic: "new"}) as second,
    ):
        await second.subscribe(topic, "paid")
        async with asyncio.timeout(NOTICED_S):
            while not second.subscription_mismatches():
                await asyncio.sleep(0.05)
        (found,) = second.subscription_mismatches()

    assert (found.topic, found.theirs, found.mine) == (topic, "new", "paid")


async def test_asking_may_be_cancelled_anywhere(
    instance: ClientInstance, name_servers: str, queues: list[MessageQueue], group: str
) -> None:
    topic = queues[0].topic
    await core_of(instance).routes.find(topic)
    async with member(name_servers, group, {topic: "new"}):
        mine = {topic: Filter.tags("paid")}
        await found_in_time(instance, group, mine, "new")

        async def still_told() -> None:
            assert len(await check(instance, group, mine)) == 1

        assert await cancel_at_every_await(lambda: check(instance, group, mine), still_told) >= 2


async def test_another_client_with_the_same_id_is_warned_of_once(
    name_servers: str, queues: list[MessageQueue], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client id may come from a file that several processes share."""
    topic = queues[0].topic
    async with ClientCore(name_servers, name="shared") as one, ClientCore(name_servers) as other:
        for client in (one, other):
            client.join(SilentConsumer(group, {topic: "*"}))
            await client.routes.find(topic)
        looks = SubscriptionCheck(one, group, lambda: {topic: Filter.tags()})
        await one.heartbeat()
        await looks.look()
        other.client_id = "shared"
        await other.heartbeat()
        for _ in range(3):
            await looks.look()

        lines = [line.getMessage() for line in caplog.records if "same client id" in line.msg]
        assert len(lines) == 1
        assert f"group={group} client=shared addresses=" in lines[0]
