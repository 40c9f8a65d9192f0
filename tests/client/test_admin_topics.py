"""Topics, brokers and name servers as an administrator sees and changes them."""

from __future__ import annotations

import uuid
from contextlib import suppress

import pytest
from servers import Cluster

from cometmq.client import (
    AdminClient,
    ClientError,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    ResponseError,
    TopicNotFoundError,
)
from cometmq.client._connection.instance import core_of
from cometmq.client.errors import InvalidNameError
from cometmq.model.times import now_ms
from cometmq.model.topic import Perm
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import RemotingClient, check
from support.checks.waiting import until


@pytest.fixture
async def broker(admin: AdminClient) -> str:
    """The address of the only broker."""
    ((_, broker),) = (await admin.cluster_info()).broker_addr_table.items()
    return broker.broker_addrs[0]


async def test_a_topic_is_made_shown_changed_and_deleted(admin: AdminClient) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    assert len(await admin.create_topic(topic, queues=3)) == 3
    assert topic in await admin.topics()

    ((name, config),) = (await admin.topic_configs(topic)).items()
    assert (config.topic_name, config.write_queue_nums, config.perm) == (topic, 3, 6)
    await admin.create_topic(topic, queues=5, perm=Perm.READ, brokers=[name])
    config = (await admin.topic_configs(topic))[name]
    assert (config.read_queue_nums, config.perm) == (5, Perm.READ)

    await admin.delete_topic(topic)

    async def gone() -> bool:
        return topic not in await admin.topics()

    await until(gone)
    with pytest.raises(TopicNotFoundError):
        await admin.topic_configs(topic)


async def test_a_broker_shows_all_its_topics(admin: AdminClient, broker: str, topic: str) -> None:
    configs = await admin.broker_topics(broker)

    assert configs[topic].write_queue_nums == 4
    assert "TBW102" in configs


async def test_a_topic_that_may_not_be_written_takes_no_message(
    admin: AdminClient, instance: ClientInstance
) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    await admin.create_topic(topic, perm=Perm.READ)
    async with Producer(instance=instance, group="admin-tests") as producer:
        with pytest.raises(TopicNotFoundError, match="no writable queue"):
            await producer.send(Message(topic, b"x"))


async def test_a_topic_without_a_valid_name_is_refused_before_anything_is_sent(
    admin: AdminClient,
) -> None:
    with pytest.raises(InvalidNameError):
        await admin.create_topic("no blanks")


async def test_a_topic_for_a_broker_that_is_not_there_is_refused(admin: AdminClient) -> None:
    with pytest.raises(ClientError, match="no such broker: elsewhere"):
        await admin.create_topic("t", brokers=["elsewhere"])


async def test_name_servers_keep_which_queues_an_ordered_topic_has(
    admin: AdminClient, queues: list[MessageQueue]
) -> None:
    topic, broker = queues[0].topic, queues[0].broker_name
    assert await admin.order_conf(topic) == {}

    await admin.set_order_conf(topic, {broker: 2})

    assert await admin.order_conf(topic) == {broker: 2}
    await admin.set_order_conf(topic, {})
    assert await admin.order_conf(topic) == {}


@pytest.mark.long_elsewhere
async def test_an_order_configuration_that_no_route_contains_is_warned_of(
    own_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    warning = "order configuration without effect, it needs orderMessageEnable=true"
    client = RemotingClient()
    try:
        async with AdminClient(own_cluster.namesrv) as admin:
            await admin.create_topic("t", queues=1, ordered=True)
            assert caplog.text.count(warning) == 1
            code, body = RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true"
            check(await client.call(own_cluster.namesrv, code, body=body, timeout=60))
            await admin.create_topic("u", queues=1, ordered=True)
            await admin.set_order_conf("t", {})
    finally:
        await client.close()
    assert caplog.text.count(warning) == 1


@pytest.mark.parametrize("text", ["a:x", "a", "a:-1", ":3"])
async def test_an_order_configuration_of_a_tool_that_is_none_is_shown_in_the_error(
    admin: AdminClient, queues: list[MessageQueue], text: str
) -> None:
    topic = queues[0].topic
    await admin.kv_put("ORDER_TOPIC_CONFIG", topic, text)
    with pytest.raises(ClientError, match=f"is '{text}', expected broker:queues"):
        await admin.order_conf(topic)
    await admin.set_order_conf(topic, {})


async def test_an_ordered_topic_is_made_and_deleted_with_its_order_configuration(
    admin: AdminClient, target: str
) -> None:
    ((broker, _),) = (await admin.cluster_info()).broker_addr_table.items()
    topic = f"t-{uuid.uuid4().hex}"

    assert len(await admin.create_topic(topic, queues=3, ordered=True)) == 3

    assert await admin.order_conf(topic) == {broker: 3}
    if target != "4.9.7":  # which learns it with its next registration
        assert (await admin.topic_configs(topic))[broker].order
    await admin.delete_topic(topic)
    assert await admin.order_conf(topic) == {}


async def test_statistics_tell_what_each_queue_holds(
    admin: AdminClient, instance: ClientInstance, queues: list[MessageQueue]
) -> None:
    async with Producer(instance=instance, group="admin-tests") as producer:
        for queue in (queues[0], queues[0], queues[1]):
            await producer.send(Message(queue.topic, b"x"), queue=queue)

    async def filled() -> bool:
        stats = await admin.topic_stats(queues[0].topic)
        return [stats[queue].max_offset for queue in queues] == [2, 1, 0, 0]

    await until(filled)
    bounds = await admin.queue_bounds(queues[0].topic)
    assert [tuple(bounds[queue]) for queue in queues[:2]] == [(0, 2), (0, 1)]


async def test_a_broker_tells_its_figures(admin: AdminClient, broker: str) -> None:
    figures: dict[str, str] = {}
    before_ms = now_ms()

    async def told() -> bool:
        with suppress(ResponseError):  # RocketMQ fails until it has taken its first sample
            figures.update(await admin.broker_runtime_info(broker))
        return "putTps" in figures

    await until(told)
    assert 0 < int(figures["bootTimestamp"]) <= before_ms  # not that of the first request


async def test_a_broker_tells_how_its_replicas_follow_it(
    admin: AdminClient,
    instance: ClientInstance,
    queues: list[MessageQueue],
    broker: str,
    target: str,
) -> None:
    async with Producer(instance=instance, group="p") as producer:
        await producer.send(Message(queues[0].topic, b"x"), queue=queues[0])
    if target == "4.9.7":
        with pytest.raises(ResponseError, match="not supported"):
            await admin.replication(broker)
        return
    told = await admin.replication(broker)

    assert told.master
    assert told.master_commit_log_max_offset > 0
    assert told.ha_connection_info == []


async def test_settings_of_a_broker_are_shown_and_changed(admin: AdminClient, broker: str) -> None:
    before = (await admin.broker_config(broker))["maxMessageSize"]
    await admin.set_broker_config(broker, {"maxMessageSize": "1000000"})
    try:
        assert (await admin.broker_config(broker))["maxMessageSize"] == "1000000"
    finally:
        await admin.set_broker_config(broker, {"maxMessageSize": before})


async def test_a_broker_is_not_written_to_while_that_is_stopped(
    admin: AdminClient, instance: ClientInstance, queues: list[MessageQueue]
) -> None:
    topic, name = queues[0].topic, queues[0].broker_name

    async def perm() -> int:
        route = await core_of(instance).routes.refresh(topic)
        return len(route.publish_queues) if route else -1

    assert await admin.stop_writing(name) > 0
    try:
        assert await perm() == 0
    finally:
        assert await admin.resume_writing(name) > 0
    assert await perm() == 4


async def test_name_servers_keep_values(admin: AdminClient) -> None:
    space = f"space-{uuid.uuid4().hex}"
    assert await admin.kv_get(space, "k") is None
    assert await admin.kv_list(space) == {}

    await admin.kv_put(space, "k", "v")
    await admin.kv_put(space, "other", "w")
    await admin.kv_delete(space, "other")

    assert await admin.kv_get(space, "k") == "v"
    assert await admin.kv_list(space) == {"k": "v"}


async def test_a_counter_of_a_broker_counts(
    admin: AdminClient, broker: str, instance: ClientInstance, topic: str
) -> None:
    async with Producer(instance=instance, group="admin-tests") as producer:
        await producer.send(Message(topic, b"x"))
    counter = await admin.broker_counter(broker, "TOPIC_PUT_NUMS", topic)

    assert counter.stats_minute.sum >= 0
    with pytest.raises(ResponseError):
        await admin.broker_counter(broker, "TOPIC_PUT_NUMS", f"{topic}-other")


async def test_a_broker_cleans_up_when_told(admin: AdminClient, broker: str, topic: str) -> None:
    await admin.clean_up(broker)

    assert topic in await admin.topics()
