"""Commands about topics: their settings, routes, queues and rates."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from cometmq.cli.admin.arguments import settings_in
from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, CommandError
from cometmq.client.allocation import Averagely
from cometmq.client.library import route_from
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX, Perm, TopicConfig
from cometmq.protocol.bodies.group import ConsumeStats, OffsetWrapper
from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.bodies.topic import TopicOffset
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import DeleteTopicInNamesrvRequest

ORDER_SPACE = "ORDER_TOPIC_CONFIG"
UNIT, HAS_UNIT_SUBSCRIPTION = 1, 2
QUEUES = 8
"""The queues of a topic, if none are given."""


async def update_topic(call: Call) -> None:
    """Create a topic or change its settings."""
    config = TopicConfig(
        topic_name=call.text("t"),
        read_queue_nums=call.number("r", QUEUES),
        write_queue_nums=call.number("w", QUEUES),
        perm=call.number("p", Perm.READ | Perm.WRITE),
        topic_sys_flag=UNIT * call.true("u") + HAS_UNIT_SUBSCRIPTION * call.true("s"),
        order=call.true("o"),
        attributes=attributes(call.text("a")),
    )
    if call.has("b"):
        broker = call.text("b")
        await put_topic(call, broker, config)
        if config.order:
            names = await _names(call, {broker})
            old = await call.admin.order_conf(config.topic_name)
            await _put_order(
                call, "broker", config, old | dict.fromkeys(names, config.write_queue_nums)
            )
        print(f"create topic to {broker} success.")
    else:
        masters = await call.masters(call.text("c"))
        for broker in masters:
            await put_topic(call, broker, config)
            print(f"create topic to {broker} success.")
        if config.order:
            names = await _names(call, set(masters))
            await _put_order(call, "cluster", config, dict.fromkeys(names, config.write_queue_nums))
    print(texts.topic_config(config, is_4=call.is_4))


async def _names(call: Call, addresses: set[str]) -> list[str]:
    table = (await call.admin.cluster_info()).broker_addr_table
    return sorted(
        name for name, broker in table.items() if addresses & {*broker.broker_addrs.values()}
    )


async def _put_order(call: Call, where: str, config: TopicConfig, queues: dict[str, int]) -> None:
    text = ";".join(f"{name}:{count}" for name, count in queues.items())
    await call.admin.kv_put(ORDER_SPACE, config.topic_name, text)
    shown = text if where == "cluster" else text.split(";")[-1]
    print(
        f"set {where} orderConf. isOrder=true, orderConf=[{shown}]", end="" if call.is_4 else "\n"
    )


def attributes(text: str) -> dict[str, str]:
    """Return changes of attributes: ``+name=value`` sets one, ``-name`` removes one.

    Raises:
        CommandError: a change has another form.
    """
    changes: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if not (name.startswith("+") and value) and not (name.startswith("-") and name == part):
            raise CommandError(f"attribute {part}: expected +name=value or -name")
        changes[name] = value
    return changes


async def put_topic(call: Call, broker: str, config: TopicConfig) -> None:
    """Create or change a topic on one broker.

    Raises:
        ResponseError: the broker refused, or 5.3's tool does not send these permissions.
    """
    if not call.is_4 and not 0 <= config.perm < Perm.PRIORITY:
        raise ResponseError(
            ResponseCode.NO_PERMISSION, f"topicPermission value: {config.perm} is invalid."
        )
    await call.admin.set_topic_config(broker, config)


async def update_topic_list(call: Call) -> None:
    """Create or change the topics of a JSON file."""
    configs = read_list(call.text("f"), TopicConfig)
    if configs is None:
        return
    for broker in await call.chosen_masters():
        await call.admin.set_topic_configs(broker, configs)
        print(f"submit batch of topic config to {broker} success, please check the result later.")


S = TypeVar("S", bound=msgspec.Struct)


def read_list(name: str, kind: type[S]) -> list[S] | None:
    """Read a JSON file with a list of settings; print it if there is no such file.

    Raises:
        CommandError: the file is not such a list.
    """
    path = Path(name)
    if not path.exists():
        print(f"the file path {name} does not exists")
        return None
    try:
        return settings_in(path, kind)
    except ConfigError as error:
        raise CommandError(str(error)) from None


async def delete_topic(call: Call) -> None:
    """Delete a topic from the brokers of a cluster and from the name servers."""
    await show_removed(call, call.text("t"), call.text("c"))


async def show_removed(call: Call, topic: str, cluster: str) -> None:
    """Delete a topic, and print that."""
    await remove_topic(call, topic, cluster)
    print(f"delete topic [{topic}] from cluster [{cluster}] success.")
    print(f"delete topic [{topic}] from NameServer success.")


async def remove_topic(call: Call, topic: str, cluster: str) -> None:
    """Delete a topic from the masters of a cluster and from all name servers; print nothing."""
    for broker in await call.masters(cluster):
        await call.admin.delete_broker_topic(broker, topic)
    forget = DeleteTopicInNamesrvRequest(topic=topic, cluster_name=cluster)
    for server in call.admin.name_servers:
        await call.admin.call(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, forget)
    await call.admin.kv_delete(ORDER_SPACE, topic)


async def update_topic_perm(call: Call) -> None:
    """Change what may be done with a topic."""
    topic, wanted = call.text("t"), call.number("p")
    route = await call.admin.route(topic)
    if not route.queue_datas:
        raise CommandError(f"no broker has queues of topic {topic}")
    queues = route.queue_datas[0]
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=queues.read_queue_nums,
        write_queue_nums=queues.write_queue_nums,
        perm=wanted,
        topic_sys_flag=queues.topic_sys_flag,
    )
    if queues.perm == wanted:
        print("new perm equals to the old one!")
        return
    if call.has("b") and call.text("b") not in route.masters():
        print("updateTopicPerm error broker not exit or broker is not master!.")
        return
    for broker in await call.chosen_masters():
        await put_topic(call, broker, config)
        print(f"update topic perm from {queues.perm} to {wanted} in {broker} success.")
    if call.has("b"):
        print(f"{texts.topic_config(config, is_4=call.is_4)}.")


async def topic_route(call: Call) -> None:
    """Show the brokers and queues of a topic."""
    route = await call.admin.route(call.text("t"))
    if not call.has("l"):
        shown = texts.bean(route)
        for broker in shown["brokerDatas"]:
            if call.is_4:
                del broker["enableActingMaster"]
        print(texts.pretty(shown))
        return
    form = "%-45s %-32s %-50s %-10s %-11s %-5s"
    brokers = {broker.broker_name: broker for broker in route.broker_datas}
    print(
        form % ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    )
    for row in route.queue_datas:
        broker = brokers[row.broker_name]
        where = texts.java(broker.broker_addrs)
        counts = (row.read_queue_nums, row.write_queue_nums, row.perm)
        print(form % (broker.cluster, row.broker_name, where, *counts))
    print("-" * 158)
    read = sum(row.read_queue_nums for row in route.queue_datas)
    write = sum(row.write_queue_nums for row in route.queue_datas)
    print(form % ("Total:", len(brokers), "", read, write, ""))


async def topic_status(call: Call) -> None:
    """Show the offsets of each queue of a topic, and its rate."""
    topic = call.text("t")
    found: dict[MessageQueue, TopicOffset] = {}
    tps = 0.0
    for broker in (await call.brokers_of(call.text("c") or topic)).values():
        table = await call.admin.broker_topic_stats(broker, topic)
        found |= table.offset_table
        tps += table.topic_put_tps
    if not found:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "Not found the topic stats info")
    logical = await call.admin.logical_topic_stats(topic, found)
    form = "%-32s  %-4s  %-20s  %-20s    %s"
    print(form % ("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"))
    for queue, row in [*logical.items(), *sorted(found.items())]:
        updated = texts.to_ms(row.last_update_timestamp) if row.last_update_timestamp > 0 else ""
        print(
            form % (queue.broker_name[:32], queue.queue_id, row.min_offset, row.max_offset, updated)
        )
    if not call.is_4:
        print(f"\nTopic Put TPS: {tps}")


async def topic_cluster_list(call: Call) -> None:
    """List the clusters of a topic."""
    names = {broker.broker_name for broker in (await call.admin.route(call.text("t"))).broker_datas}
    clusters = (await call.admin.cluster_info()).cluster_addr_table
    for cluster, brokers in sorted(clusters.items()):
        if names & {*brokers}:
            print(cluster)


async def topic_list(call: Call) -> None:
    """List topics; with ``-c`` topics of applications, with their clusters and groups."""
    topics = await call.admin.topics()
    if not call.has("c"):
        for topic in topics:
            print(topic)
        return
    print("%-20s  %-48s  %-48s" % ("#Cluster Name", "#Topic", "#Consumer Group"))
    for topic in topics:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        cluster, groups = "", list[str]()
        with suppress(CometError):  # the row of a topic that no broker serves now stays empty
            route = await call.admin.route(topic)
            cluster = route.broker_datas[0].cluster if route.broker_datas else ""
            groups = await groups_of(call, topic, route)
        for group in groups or [""]:
            print("%-20s  %-64s  %-64s" % (cluster[:20], topic[:64], group[:64]))


async def groups_of(call: Call, topic: str, route: TopicRouteData) -> list[str]:
    """Return the groups that brokers list for a topic, in their order."""
    found: dict[str, None] = {}
    for broker in route.masters():
        found |= dict.fromkeys(await call.admin.broker_groups_of_topic(broker, topic))
    return list(found)


async def update_order_conf(call: Call) -> None:
    """Write, read or delete the order configuration of a topic."""
    topic, method = call.text("t"), call.text("m")
    if method == "get":
        value = await call.admin.kv_get(ORDER_SPACE, topic)
        if value is None:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {ORDER_SPACE} Key: {topic}",
            )
        print(f"get orderConf success. topic=[{topic}], orderConf=[{value}] ", end="")
    elif method == "put":
        if not call.has("v"):
            raise CommandError("please set orderConf with option -v.")
        await call.admin.kv_put(ORDER_SPACE, topic, call.text("v"))
        print(f"update orderConf success. topic=[{topic}], orderConf=[{call.text('v')}]", end="")
    elif method == "delete":
        await call.admin.kv_delete(ORDER_SPACE, topic)
        print(f"delete orderConf success. topic=[{topic}]", end="")
    else:
        call.print_usage()


async def allocate_mq(call: Call) -> None:
    """Show how the queues of a topic are allocated to clients."""
    route, topic = await call.admin.route(call.text("t")), call.text("t")
    queues = sorted(route_from(topic, route).read_queues)
    clients = [client.strip() for client in call.text("i").split(",")]
    result = {
        client: [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": topic}
            for queue in Averagely().allocate("", client, queues, clients)
        ]
        for client in clients
    }
    print(json.dumps({"result": result}, separators=(",", ":")))


STATS_HEADS = ("#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour")


async def stats_all(call: Call) -> None:
    """Show the rates of topics and the lag of their groups."""
    wanted, active = call.text("t"), call.has("a")
    print("%-64s  %-64s %12s %11s %11s %14s %14s" % (*STATS_HEADS, "#OutMsg24Hour"))
    for topic in await call.admin.topics():
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or wanted not in ("", topic):
            continue
        try:
            await _print_stats(call, topic, active)
        except CometError as error:
            call.fail(error)


async def _print_stats(call: Call, topic: str, active: bool) -> None:
    route = await call.admin.route(topic)
    masters = route.masters()
    in_tps, in_day = await call.admin.broker_counters(masters, "TOPIC_PUT_NUMS", topic)
    groups = await groups_of(call, topic, route)
    for group in groups:
        key = f"{topic}@{group}"
        out_tps, out_day = await call.admin.broker_counters(masters, "GROUP_GET_NUMS", key)
        if not active or in_day > 0 or out_day > 0:
            lag = await _lag(call, masters, group, topic)
            row = (topic, group, lag, in_tps, out_tps, in_day, out_day)
            print("%-64s  %-64s %12d %11.2f %11.2f %14d %14d" % row)
    if not groups and (not active or in_day > 0):
        print(
            "%-64s  %-64s %12d %11.2f %11s %14d %14s"
            % (topic, "", 0, in_tps, "", in_day, "NO_CONSUMER")
        )


async def _lag(call: Call, brokers: list[str], group: str, topic: str) -> int:
    rows: dict[MessageQueue, OffsetWrapper] = {}
    for broker in brokers:
        with suppress(ResponseError):  # the group has no offset there
            found = await call.admin.broker_consume_stats(broker, group, topic)
            rows |= found.offset_table
    rows = await call.admin.logical_consume_stats(group, rows)
    return max(lag_in(ConsumeStats(offset_table=rows)), 0)


def lag_in(stats: ConsumeStats) -> int:
    """Return how many messages a group has not consumed."""
    return sum(row.broker_offset - row.consumer_offset for row in stats.offset_table.values())
