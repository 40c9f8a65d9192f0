"""Commands that write topics, groups, settings and figures of a cluster to JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, CommandError
from cometmq.cli.mqadmin.groups import connections
from cometmq.model.errors import ResponseError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.namespace import is_system_group
from cometmq.model.runtime_figures import YESTERDAY, messages, rate
from cometmq.model.times import now_ms
from cometmq.model.topic import (
    DELAY_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    TopicConfig,
    is_system_topic,
)
from cometmq.protocol.bodies.common import DataVersion, TopicList
from cometmq.protocol.bodies.group import SubscriptionGroupWrapper
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.version import CURRENT_VERSION, version_name

FOLDER = "/tmp/rocketmq/export"
CONFIGS = (
    *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime"),
    *("filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel"),
    *("msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS"),
    *("autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
)
"""The settings of brokers that are exported, if the broker has them."""


async def export_metadata(call: Call) -> None:
    """Write topics and groups of a broker or of a cluster to a file."""
    only_topics, only_groups = call.has("t"), call.has("g")
    if call.has("b") and (only_topics or only_groups):
        await _export_broker(call, only_topics)
        return
    if not call.has("c"):
        call.print_usage()
        return
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    for broker in await call.masters(call.text("c")):
        for name, topic in (await _topics(call, broker)).items():
            same = topics.get(name)
            if same is not None:
                topic.read_queue_nums += same.read_queue_nums
                topic.write_queue_nums += same.write_queue_nums
            topics[name] = topic
        for name, group in (await user_groups(call, broker)).items():
            same_group = groups.get(name)
            if same_group is not None:
                group.retry_queue_nums += same_group.retry_queue_nums
            groups[name] = group
    tables = {
        "topicConfigTable": _shown(call, topics),
        "subscriptionGroupTable": _shown(call, groups),
    }
    name = "metadata.json"
    if only_topics:
        name = "topic.json"
        del tables["subscriptionGroupTable"]
    elif only_groups:
        name = "subscriptionGroup.json"
        del tables["topicConfigTable"]
    _write(call, name, tables | {"exportTime": now_ms()}, end="\n")


async def _export_broker(call: Call, only_topics: bool) -> None:
    broker = call.text("b")
    if only_topics:
        response = await call.admin.call(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        version = TopicConfigSerializeWrapper.decode(response.body).data_version
        table = {"topicConfigTable": _shown(call, await _topics(call, broker))}
    else:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        response = await call.admin.call(broker, code)
        version = SubscriptionGroupWrapper.decode(response.body).data_version
        table = {"subscriptionGroupTable": _shown(call, await user_groups(call, broker))}
    name = "topic.json" if only_topics else "subscriptionGroup.json"
    _write(call, name, {"dataVersion": _version(call, version), **table})


def _version(call: Call, version: DataVersion) -> dict[str, int]:
    shown: dict[str, int] = texts.bean(version)
    if call.is_4:
        del shown["stateVersion"]
    return shown


def _shown(call: Call, table: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = texts.bean(table)
    if call.is_4:
        for each in shown.values():
            for name in texts.ONLY_IN_5:
                each.pop(name, None)
    return shown


async def _topics(call: Call, broker: str) -> dict[str, TopicConfig]:
    """Return the topics of applications; with ``-s`` also their retry topics and dead letters."""
    response = await call.admin.call(broker, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    system = {*TopicList.decode(response.body).topic_list}
    special = (RETRY_PREFIX, DLQ_PREFIX)
    return {
        name: config
        for name, config in (await call.admin.broker_topics(broker)).items()
        if name not in system
        and not is_system_topic(name)
        and (call.has("s") or not name.startswith(special))
    }


async def user_groups(call: Call, broker: str) -> dict[str, SubscriptionGroupConfig]:
    """Return the groups of applications."""
    return {
        name: config
        for name, config in (await call.admin.broker_groups(broker)).items()
        if not is_system_group(name)
    }


def _write(call: Call, name: str, value: object, *, end: str = "") -> None:
    path = Path(call.text("f", FOLDER)) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts.pretty(value))
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error}") from None
    print(f"export {path} success", end=end)


async def export_configs(call: Call) -> None:
    """Write main settings of brokers and the size of the cluster to a file."""
    cluster = call.text("c")
    brokers = await call.brokers(cluster)
    masters = [each for each in brokers if each.is_master]
    configs: dict[str, dict[str, str]] = {}
    for master in masters:
        found = await call.admin.broker_config(master.address)
        configs[master.name] = {name: found[name] for name in CONFIGS if name in found}
    scale = {
        "namesrvSize": len(call.admin.name_servers),
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": len(brokers) - len(masters),
    }
    _write(call, "configs.json", {"brokerConfigs": configs, "clusterScale": scale})


async def export_metrics(call: Call) -> None:
    """Write figures of the load of brokers to a file."""
    cluster, info = call.text("c"), await call.admin.cluster_info()
    if cluster not in info.cluster_addr_table:
        raise CommandError(f"-c {cluster}: no such cluster")
    reports = {
        broker.name: await _report(call, broker.address)
        for broker in info.registered(cluster)
        if broker.is_master
    }
    quotas = [report["runtimeQuota"] for report in reports.values()]
    rates = ("NormalInTps", "NormalOutTps", "TransInTps", "ScheduleInTps")
    total = {
        "totalTps": {
            f"total{name}": sum((each["tps"][name[0].lower() + name[1:]] for each in quotas), 0.0)
            for name in rates
        },
        "totalOneDayNum": {
            name: sum(each["oneDayNum"][name] for each in quotas)
            for name in (
                "transOneDayInNum",
                "scheduleOneDayInNum",
                "normalOneDayOutNum",
                "normalOneDayInNum",
            )
        },
    }
    _write(call, "metrics.json", {"evaluateReport": reports, "totalData": total})


async def _report(call: Call, broker: str) -> dict[str, Any]:
    figures = await call.admin.broker_runtime_info(broker)
    settings = await call.admin.broker_config(broker)
    groups = await user_groups(call, broker)
    transactions = await call.admin.broker_counters([broker], "TOPIC_PUT_NUMS", HALF_TOPIC)
    scheduled = await call.admin.broker_counters([broker], "TOPIC_PUT_NUMS", DELAY_TOPIC)
    environment = {
        "cpuNum": settings.get("clientCallbackExecutorThreads"),
        "totalMemKBytes": figures.get("totalMemKBytes"),
    }
    quota = {
        "diskRatio": {
            name: figures.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")
        },
        "tps": {
            "normalInTps": rate(figures, "putTps") or 0.0,
            "normalOutTps": rate(figures, "getTransferredTps", "getTransferedTps") or 0.0,
            "transInTps": transactions[0],
            "scheduleInTps": scheduled[0],
        },
        "oneDayNum": {
            "normalOneDayInNum": messages(figures, "Put", YESTERDAY),
            "normalOneDayOutNum": messages(figures, "Get", YESTERDAY),
            "transOneDayInNum": transactions[1],
            "scheduleOneDayInNum": scheduled[1],
        },
        "messageAverageSize": figures.get("putMessageAverageSize"),
        "topicSize": len(await _topics(call, broker)),
        "groupSize": len(groups),
    }
    version = version_name(CURRENT_VERSION)
    runtime = {"rocketmqVersion": version, "clientInfo": await _clients(call, groups)}
    return {
        "runtimeEnv": {name: value for name, value in environment.items() if value is not None},
        "runtimeQuota": quota,
        "runtimeVersion": runtime,
    }


async def _clients(call: Call, groups: Mapping[str, object]) -> tuple[str, ...]:
    found: set[str] = set()
    for group in groups:
        try:
            members = (await connections(call, group)).connection_set
        except ResponseError:
            continue
        found |= {f"{each.language}%{version_name(each.version)}" for each in members}
    return tuple(sorted(found))
