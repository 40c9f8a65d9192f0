"""Requests of tools about topics and groups, without a socket, on a real store."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.groups.handler import GroupHandler
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.role import Role
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.topics.handler import TopicHandler
from cometmq.broker.topics.table import TopicTable
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.store import MessageStore, StoreSettings
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.brokers.cores import core_of
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import put
from support.wire.memory_link import link
from unit.broker.conftest import nothing_else


class Failing(Files):
    """Files that cannot be renamed while `broken` is set: no table can be saved then."""

    broken = False

    def rename(self, path: Path, target: Path) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")
        super().rename(path, target)


class Broker:
    """The tables, a store, and requests to them."""

    def __init__(self, folder: Path) -> None:
        self.files, self.clock = Failing(), ManualClock()
        self.settings = BrokerSettings(broker_name="broker-a")
        sizes = {"commit_log_file_bytes": 2**20, "index_slots": 100, "index_entries": 400}
        settings = StoreSettings(root=folder, flush_disk_type="ASYNC_FLUSH", **sizes)
        self.store = MessageStore(settings, clock=self.clock)
        self.store.open()
        config = folder / "config"
        self.topics = TopicTable(
            lambda: self.settings, JsonFile(config / "topics.json", self.files), clock=self.clock
        )
        self.groups = GroupTable(
            lambda: self.settings,
            JsonFile(config / "subscriptionGroup.json", self.files),
            clock=self.clock,
        )
        self.offsets = OffsetStore(
            JsonFile(config / "consumerOffset.json", self.files), clock=self.clock
        )
        self.stats = BrokerStats("c", clock=self.clock, is_system_topic=self.topics.is_system)
        self.topics.load()
        self.groups.load()
        self.announced = 0
        self.role = Role()
        self.handlers = self._routes()

    def _routes(self) -> dict[int, Any]:
        core = core_of(
            lambda: self.settings,
            self.store,
            self.clock,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            stats=self.stats,
            role=self.role,
        )
        topics = TopicHandler(
            core,
            announce=self._announce,
            forget=self._forget_topic,
            changes_to_make=lambda: None,
            retry_topics=lambda topic: [],
        )
        groups = GroupHandler(core, self._forget_group)
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.put,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.put_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
            RequestCode.CLEAN_UNUSED_TOPIC: topics.clean_unused,
            RequestCode.GET_TOPIC_CONFIG: topics.show,
            RequestCode.GET_ALL_TOPIC_CONFIG: topics.show_all,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.show_system,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.put,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.put_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.show,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.show_all,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.forbid,
        }

    async def _forget_topic(self, topic: str) -> None:
        await self.offsets.forget_topic(topic)

    async def _forget_group(self, group: str) -> None:
        """Called for each deleted group; pop consumption is tested elsewhere."""

    async def _announce(self) -> None:
        self.announced += 1

    async def ask(self, code: RequestCode, body: bytes = b"", **fields: object) -> Command:
        _, client = link(self.handlers)
        texts = {
            name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in fields.items()
        }
        async with asyncio.timeout(60):
            return await client.call(code, None, body, timeout=60, fields=texts)

    async def ok(self, code: RequestCode, body: bytes = b"", **fields: object) -> Any:
        """The body of an answer that must be a success."""
        answer = await self.ask(code, body, **fields)
        assert answer.code == 0, answer.remark
        return json.loads(answer.body) if answer.body else None

    async def put_topic(self, topic: str, **changes: object) -> Command:
        fields: dict[str, object] = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": 2,
            "writeQueueNums": 2,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        return await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **(fields | changes))

    def fill(self, topic: str, count: int = 3) -> None:
        self.topics.put_now([TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)])
        for number in range(count):
            put(self.store, str(number).encode(), topic=topic, born_time_ms=self.clock.now_ms())


def listing(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.store.close()


# --- topics: making and changing ----------------------------------------------------------------


async def test_topic_is_made_announced_and_shown(broker: Broker) -> None:
    answer = await broker.put_topic(
        "T", readQueueNums=5, writeQueueNums=3, perm=4, topicSysFlag=1, order=True
    )
    assert answer.code == 0
    assert broker.announced == 1
    assert await broker.ok(RequestCode.GET_TOPIC_CONFIG, topic="T") == {
        "attributes": {},
        "order": True,
        "perm": 4,
        "readQueueNums": 5,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 1,
        "writeQueueNums": 3,
    }


async def test_same_settings_again_change_nothing(broker: Broker) -> None:
    await broker.put_topic("T")
    version = broker.topics.version
    assert (await broker.put_topic("T")).code == 0
    assert (broker.topics.version, broker.announced) == (version, 1)


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"topic": ""}, "The specified topic is blank."),
        ({"topic": " "}, "The specified topic is blank."),
        ({"topic": "a/b"}, "The specified topic contains illegal characters"),
        ({"topic": ".."}, "The specified topic contains illegal characters"),
        ({"topic": "x" * 128}, "The specified topic is longer"),
        ({"topic": "TBW102"}, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "rmq_sys_x"}, "The topic[rmq_sys_x] is conflict with system topic."),
        ({"readQueueNums": -1}, "readQueueNums is -1, expected 0 to 65535"),
        ({"writeQueueNums": 65536}, "writeQueueNums is 65536, expected 0 to 65535"),
        ({"perm": 16}, "perm is 16, expected 0 to 15"),
        ({"topicFilterType": "ANY"}, "topicFilterType is 'ANY'"),
        ({"attributes": "+message.type=MIXED"}, "MIXED message type is not supported."),
    ],
)
async def test_illegal_topic_is_refused(
    broker: Broker, fields: dict[str, object], remark: str
) -> None:
    before = dict(broker.topics.all())
    answer = await broker.put_topic(**({"topic": "T"} | fields))  # type: ignore[arg-type]
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark is not None
    assert answer.remark.startswith(remark)
    assert dict(broker.topics.all()) == before


async def test_an_illegal_attribute_is_refused_with_the_code_of_rocketmq(broker: Broker) -> None:
    answer = await broker.put_topic("T", attributes="color=red")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("attribute change 'color=red'")
    assert "T" not in broker.topics.all()


async def test_attributes_are_changed_one_by_one(broker: Broker) -> None:
    await broker.put_topic("T", attributes="+message.type=FIFO,+reserve.time=5")
    assert (await broker.put_topic("T", attributes="-reserve.time")).code == 0
    assert broker.topics.all()["T"].attributes == {"message.type": "FIFO"}
    assert (await broker.put_topic("T", readQueueNums=9)).code == 0
    assert broker.topics.all()["T"].attributes == {"message.type": "FIFO"}


async def test_mixed_topics_can_be_switched_on(broker: Broker) -> None:
    broker.settings = dataclasses.replace(broker.settings, enable_mixed_message_type=True)
    assert (await broker.put_topic("T", attributes="+message.type=MIXED")).code == 0


async def test_system_topics_can_be_changed_where_that_is_set(broker: Broker) -> None:
    broker.settings = dataclasses.replace(broker.settings, validate_system_topic_when_update=False)
    assert (await broker.put_topic("BenchmarkTest", readQueueNums=4)).code == 0
    assert broker.topics.all()["BenchmarkTest"].read_queue_nums == 4


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 10**400])
async def test_a_list_with_a_number_that_java_cannot_read_is_refused(
    broker: Broker, number: int
) -> None:
    """Name servers of RocketMQ would not take the registration of this broker any more."""
    rows = [{"topicName": "A", "topicSysFlag": number}]
    body = json.dumps({"topicConfigList": rows}).encode()
    answer = await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert (answer.remark or "").startswith("topicSysFlag is ")
    assert "A" not in broker.topics


async def test_list_of_topics_is_made_whole_or_not_at_all(broker: Broker) -> None:
    rows = [{"topicName": "A", "attributes": {"+message.type": "DELAY"}}, {"topicName": "B"}]
    body = json.dumps({"topicConfigList": rows}).encode()
    await broker.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
    assert broker.topics.all()["A"].attributes == {"message.type": "DELAY"}
    assert (broker.topics.all()["B"].read_queue_nums, broker.announced) == (16, 1)
    rows = [{"topicName": "C"}, {"topicName": "d/e"}]
    body = json.dumps({"topicConfigList": rows}).encode()
    answer = await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "C" not in broker.topics


async def test_slave_changes_nothing(broker: Broker) -> None:
    broker.role.change("SLAVE", 1)
    group = json.dumps({"groupName": "g"}).encode()
    answers = [
        await broker.put_topic("T"),
        await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"),
        await broker.ask(RequestCode.CLEAN_UNUSED_TOPIC),
        await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group),
        await broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="TOOLS_CONSUMER"),
    ]
    assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_ERROR}
    assert all("from slave broker" in (answer.remark or "") for answer in answers)
    assert "TOOLS_CONSUMER" in broker.groups


# --- topics: deleting ---------------------------------------------------------------------------


async def test_deleted_topic_takes_its_queues_and_offsets_and_nothing_else(
    broker: Broker,
) -> None:
    for topic in ("T", "T2"):
        broker.fill(topic)
        broker.offsets.commit("g", topic, 0, 2)
    await broker.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert "T" not in broker.topics
    assert broker.store.queue_keys() == [("T2", 0)]
    assert broker.offsets.committed("g", "T", 0) is None
    assert broker.offsets.committed("g", "T2", 0) == 2
    assert broker.store.bounds("T2", 0) == (0, 3)


async def test_topic_can_be_made_again_after_its_deletion(broker: Broker) -> None:
    broker.fill("T")
    await broker.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    broker.fill("T", 2)
    assert broker.store.bounds("T", 0)[1] >= 2


async def test_a_deletion_that_the_disk_refuses_changes_nothing(broker: Broker) -> None:
    broker.fill("T")
    broker.offsets.commit("g", "T", 0, 2)
    broker.files.broken = True
    answer = await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    broker.files.broken = False
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "T" in broker.topics
    assert broker.store.bounds("T", 0) == (0, 3)
    assert broker.offsets.committed("g", "T", 0) == 2


async def test_missing_topic_is_deleted_with_success(broker: Broker) -> None:
    await broker.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="missing")


@pytest.mark.parametrize("topic", ["../config", "..", "/etc", "a/../T"])
async def test_no_path_is_made_of_a_topic_to_delete(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.fill("T")
    before = listing(tmp_path)
    await broker.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", " "])
async def test_system_topic_cannot_be_deleted(broker: Broker, topic: str) -> None:
    answer = await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_queues_without_a_topic_are_cleaned(broker: Broker) -> None:
    broker.fill("T")
    broker.fill("orphan")
    await broker.topics.delete("orphan", nothing_else)
    await broker.ok(RequestCode.CLEAN_UNUSED_TOPIC)
    assert broker.store.queue_keys() == [("T", 0)]


async def test_change_on_a_full_disk_is_refused_and_not_made(broker: Broker) -> None:
    broker.files.broken = True
    answer = await broker.put_topic("T")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "No space left" in (answer.remark or "")
    assert "T" not in broker.topics


# --- topics: showing ----------------------------------------------------------------------------


async def test_missing_topic_is_code_17(broker: Broker) -> None:
    answer = await broker.ask(RequestCode.GET_TOPIC_CONFIG, topic="none")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic in this broker. topic: none"


async def test_all_topics_are_shown_with_their_version(broker: Broker) -> None:
    await broker.put_topic("T")
    body = await broker.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert body["topicConfigTable"].keys() == broker.topics.all().keys()
    assert body["dataVersion"]["counter"] == broker.topics.version.counter


async def test_system_topics_are_listed(broker: Broker) -> None:
    await broker.put_topic("T")
    body = await broker.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert {"TBW102", "broker-a", "DefaultCluster"} <= set(body["topicList"])
    assert "T" not in body["topicList"]


# --- groups -------------------------------------------------------------------------------------


async def put_group(broker: Broker, **changes: object) -> Command:
    body = json.dumps({"groupName": "g"} | changes).encode()
    return await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


async def test_group_is_made_and_shown(broker: Broker) -> None:
    assert (await put_group(broker, retryMaxTimes=3, consumeEnable=False)).code == 0
    body = await broker.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    assert (body["groupName"], body["retryMaxTimes"], body["consumeEnable"]) == ("g", 3, False)
    table = await broker.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert table["subscriptionGroupTable"]["g"] == body


POLICIES = {
    "default": {"type": "CUSTOMIZED"},
    "customized": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}},
    "exponential": {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1000, "max": 60000, "multiplier": 3},
    },
}


@pytest.mark.parametrize("name", POLICIES)
async def test_the_retry_policy_of_a_group_is_kept_and_shown_as_rocketmq_writes_it(
    broker: Broker, name: str, tmp_path: Path
) -> None:
    assert (await put_group(broker, groupRetryPolicy=POLICIES[name])).code == 0
    shown = await broker.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    file = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    kept = file["subscriptionGroupTable"]["g"]
    assert shown["groupRetryPolicy"] == kept["groupRetryPolicy"] == POLICIES[name]


async def test_a_group_that_an_older_tool_changes_has_the_default_policy_again(
    broker: Broker,
) -> None:
    await put_group(broker, groupRetryPolicy=POLICIES["exponential"])
    await put_group(broker, retryMaxTimes=3)
    shown = await broker.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    assert (shown["groupRetryPolicy"], shown["retryMaxTimes"]) == (POLICIES["default"], 3)


@pytest.mark.parametrize(
    ("policy", "remark"),
    [
        ({"type": "LINEAR"}, "the type of groupRetryPolicy is 'LINEAR', expected CUSTOMIZED or"),
        ({"customizedRetryPolicy": {"next": [-1]}}, "customizedRetryPolicy.next is -1, expected 0"),
        ({"customizedRetryPolicy": {"next": [1] * 129}}, "groupRetryPolicy has 129 delays"),
        ({"exponentialRetryPolicy": {"initial": -1}}, "exponentialRetryPolicy.initial is -1"),
        ({"exponentialRetryPolicy": {"max": 2**62}}, "exponentialRetryPolicy.max is 46116860184"),
        ({"exponentialRetryPolicy": {"multiplier": 0}}, "exponentialRetryPolicy.multiplier is 0"),
    ],
)
async def test_a_retry_policy_that_makes_no_sense_is_refused(
    broker: Broker, policy: dict[str, object], remark: str
) -> None:
    answer = await put_group(broker, groupRetryPolicy=policy)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert (answer.remark or "").startswith(remark)
    assert "g" not in broker.groups


async def test_attributes_of_a_group_stay_and_none_is_added(broker: Broker) -> None:
    """RocketMQ 5.3 has none; a later version's, read from a store, are not lost."""
    config = SubscriptionGroupConfig(group_name="g", attributes={"priority.factor": "5"})
    broker.groups.put_now([config])
    same = await put_group(broker, retryMaxTimes=3, attributes={"priority.factor": "5"})
    assert same.code == 0
    assert (await put_group(broker, retryMaxTimes=4)).code == 0
    assert broker.groups.all()["g"].attributes == {"priority.factor": "5"}
    answer = await put_group(broker, attributes={"+color": "red"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "unsupported attribute '+color': groups have none"


@pytest.mark.parametrize(
    "changes",
    [
        {"groupName": ""},
        {"groupName": "a/b"},
        {"groupName": "g" * 256},
        {"retryQueueNums": -1},
        {"retryQueueNums": 1_000_000},
        {"retryMaxTimes": -2},
        {"retryMaxTimes": 2**31},
        {"groupSysFlag": 2**31},
        {"consumeTimeoutMinute": -(2**31) - 1},
        {"brokerId": 2**63},
        {"whichBrokerWhenConsumeSlowly": 10**400},
        {"subscriptionDataSet": [{"topic": "T", "version": 2**63}]},
    ],
)
async def test_illegal_group_is_refused(broker: Broker, changes: dict[str, object]) -> None:
    before = dict(broker.groups.all())
    assert (await put_group(broker, **changes)).code == ResponseCode.INVALID_PARAMETER
    assert dict(broker.groups.all()) == before


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"retryMaxTimes":"many"}'])
async def test_body_that_is_no_group_is_refused(broker: Broker, body: bytes) -> None:
    answer = await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    assert answer.code != 0
    assert answer.remark


async def test_list_of_groups_is_made_whole_or_not_at_all(broker: Broker) -> None:
    body = json.dumps({"groupConfigList": [{"groupName": "g"}, {"groupName": "h"}]}).encode()
    await broker.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)
    assert {"g", "h"} <= broker.groups.all().keys()
    body = json.dumps({"groupConfigList": [{"groupName": "i"}, {"groupName": "?"}]}).encode()
    answer = await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "i" not in broker.groups


@pytest.mark.parametrize("spelling", ["cleanOffset", "removeOffset"])
async def test_deleted_group_loses_its_offsets_only_when_asked_to(
    broker: Broker, spelling: str
) -> None:
    for wanted in (False, True):
        await put_group(broker)
        broker.offsets.commit("g", "T", 0, 7)
        await broker.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", **{spelling: wanted})
        assert "g" not in broker.groups
        assert broker.offsets.committed("g", "T", 0) == (None if wanted else 7)


async def test_missing_group_is_code_26(broker: Broker) -> None:
    answer = await broker.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="none")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "none" not in broker.groups


async def test_reading_is_forbidden_and_asked_for(broker: Broker) -> None:
    where = {"group": "g", "topic": "T"}
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    assert await broker.ok(code, **where) == where | {"readable": True}
    assert await broker.ok(code, **where, readable=False) == where | {"readable": False}
    assert await broker.ok(code, **where) == where | {"readable": False}
    assert broker.groups.is_forbidden("g", "T")
    answer = await broker.ask(code, group="a/b", topic="T", readable=False)
    assert answer.code == ResponseCode.INVALID_PARAMETER
