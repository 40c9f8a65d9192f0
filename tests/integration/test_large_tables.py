"""Tables of a master that are larger than a frame reach its slaves, page by page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker import table_pages
from cometmq.broker.app import Broker
from cometmq.broker.replication import metadata
from cometmq.broker.replication.paged_tables import TOPICS
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import RemotingClient
from support.brokers.pairs import SLAVE, Pairs, running_pairs
from support.checks.waiting import until

COUNT = 1_000
FRAME_BYTES = 64 * 1024
SMALL_FRAMES = {"com.rocketmq.remoting.frameMaxLength": str(FRAME_BYTES)}
TIMEOUT_S = 60.0


@pytest.fixture
async def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pairs]:
    monkeypatch.setattr(table_pages, "PAGE_BYTES", 16 * 1024)
    async with running_pairs(tmp_path) as running:
        yield running


async def master_of(pairs: Pairs) -> Broker:
    """Start a master with tables that do not fit into the frames of its slave."""
    master = await pairs.start("a")
    topics = [TopicConfig(topic_name=f"topic-{n}", perm=4) for n in range(COUNT)]
    master.core.topics.put_now(topics)
    groups = [SubscriptionGroupConfig(group_name=f"g{n}", retry_max_times=n) for n in range(COUNT)]
    master.core.groups.put_now(groups)
    for group in ("g7", "unknown"):
        await master.core.groups.set_readable(group, "topic-1", False)
    for number in range(COUNT):
        master.core.offsets.commit(f"g{number}", f"topic-{number}", 1, number)
    return master


async def page(broker: Broker, code: int, **fields: object) -> Command:
    client = RemotingClient(name="slave")
    try:
        texts: Mapping[str, str] = {name: str(value) for name, value in fields.items()}
        return await client.call(broker.address, code, fields=texts, timeout=TIMEOUT_S)
    finally:
        await client.close()


def entries(response: Command, table: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(response.body)[table]
    return found


async def test_a_slave_copies_tables_that_are_larger_than_a_frame(
    pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    master = await master_of(pairs)
    slave = await pairs.start("b", **SMALL_FRAMES, **SLAVE)
    copied, own = slave.core, master.core
    await until(lambda: copied.topics.all() == own.topics.all())
    await until(lambda: copied.groups.all() == own.groups.all())
    assert copied.groups.forbidden() == own.groups.forbidden()
    assert len(own.groups.forbidden()) == 2
    await until(lambda: set(copied.offsets.keys()) == set(own.offsets.keys()))
    assert copied.offsets.of("g9", "topic-9") == {1: 9}
    assert copied.topics.version == own.topics.version
    assert "cannot copy tables" not in caplog.text


async def test_a_copy_begins_again_if_the_table_changes_meanwhile(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await master_of(pairs)
    pages = 0

    def change_once(whole: Any, page: Any) -> None:
        nonlocal pages
        pages += 1
        if pages == 2:
            master.core.topics.put_now([TopicConfig(topic_name="topic-0", perm=6)])

    changing = msgspec.structs.replace(TOPICS, add_others=change_once)
    monkeypatch.setattr(metadata, "TOPICS", changing)
    slave = await pairs.start("b", **SMALL_FRAMES, **SLAVE)
    await until(lambda: slave.core.topics.all() == master.core.topics.all())
    assert slave.core.topics.all()["topic-0"].perm == 6
    assert pages > 2


async def test_a_table_without_a_page_is_whole_or_refused(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers and tools of RocketMQ request whole tables."""
    master = await master_of(pairs)
    tables = {
        RequestCode.GET_ALL_TOPIC_CONFIG: "topicConfigTable",
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscriptionGroupTable",
    }
    for code, table in tables.items():
        assert len(entries(await page(master, code), table)) > COUNT
    monkeypatch.setattr(table_pages, "FRAME_BYTES_MAX", FRAME_BYTES)
    for code in (*tables, RequestCode.GET_ALL_CONSUMER_OFFSET):
        refused = await page(master, code)
        assert refused.code == 1
        assert "expected a request for a page of it" in refused.remark


async def test_a_whole_table_leaves_out_mappings_that_do_not_fit(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slaves of RocketMQ request whole tables, and use the topics only."""
    master = await master_of(pairs)
    items = [LogicQueueMappingItem(gen=gen, bname="a", queue_id=gen) for gen in range(200)]
    detail = TopicQueueMappingDetail(topic="topic-0", bname="a", hosted_queues={0: items})
    await master.core.static_topics.take(detail)
    code = RequestCode.GET_ALL_TOPIC_CONFIG
    whole = await page(master, code)
    assert b'"topicQueueMappingDetailMap":{"topic-0":' in whole.body

    room = len(whole.body) - 1
    monkeypatch.setattr(table_pages, "FRAME_BYTES_MAX", room + table_pages.HEADER_BYTES)
    smaller = await page(master, code)

    assert entries(smaller, "topicConfigTable").keys() >= {"topic-0", "topic-9"}
    assert b"topicQueueMappingDetailMap" not in smaller.body
    assert b"mappingDataVersion" not in smaller.body


async def test_pages_leave_out_mappings_that_the_slave_has(pairs: Pairs) -> None:
    master = await master_of(pairs)
    detail = TopicQueueMappingDetail(topic="topic-0", bname="pair", hosted_queues={})
    await master.core.static_topics.take(detail)
    slave = await pairs.start("b", **SMALL_FRAMES, **SLAVE)
    own, copied = master.core.static_topics, slave.core.static_topics
    await until(lambda: copied.version == own.version)
    assert set(copied.all()) == {"topic-0"}

    code, known = RequestCode.GET_ALL_TOPIC_CONFIG, copied.version.encode().decode()
    again = await page(master, code, topicSeq=0, dataVersion="", mappingDataVersion=known)
    assert b"topicQueueMappingDetailMap" not in again.body
    assert entries(again, "topicConfigTable")
    slave.features.replication.metadata.get().hurry()
    await slave.features.replication.metadata.get().run()
    assert set(copied.all()) == {"topic-0"}

    await own.take(msgspec.structs.replace(detail, epoch=1))
    slave.features.replication.metadata.get().hurry()
    await until(lambda: copied.all()["topic-0"].epoch == 1)


async def test_pages_are_those_of_rocketmq(pairs: Pairs) -> None:
    master = await master_of(pairs)
    code, table = RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"
    first = await page(master, code, topicSeq=0, maxTopicNum=3, dataVersion="")
    assert (len(entries(first, table)), first.fields) == (
        3,
        {"totalTopicNum": str(len(master.core.topics))},
    )
    version = json.dumps(json.loads(first.body)["dataVersion"])
    second = await page(master, code, topicSeq=3, maxTopicNum=3, dataVersion=version)
    assert not entries(first, table).keys() & entries(second, table).keys()
    old = DataVersion(counter=1).encode().decode()
    for other in (old, "", "none"):
        again = await page(master, code, topicSeq=3, maxTopicNum=3, dataVersion=other)
        assert entries(again, table) == entries(first, table)
    last = await page(
        master, code, topicSeq=len(master.core.topics), maxTopicNum=3, dataVersion=version
    )
    assert entries(last, table) == {}
