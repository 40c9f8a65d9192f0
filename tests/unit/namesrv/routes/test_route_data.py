"""Data read from the registry: routes, zones, acting masters and lists."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.model.topic import TopicConfig
from cometmq.namesrv.registry import Registration, Registry
from cometmq.namesrv.routes.route_data import cluster_info, long_route_of, route_of
from cometmq.namesrv.topics.handler import system_topics, topics_by_flag, topics_of_cluster
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.route import TopicQueueMappingInfo


@pytest.fixture
def registry() -> Registry:
    return Registry()


async def add(registry: Registry, name: str, *, port: int, **changes: Any) -> None:
    facts: dict[str, Any] = {
        "cluster": "c",
        "broker_name": name,
        "broker_id": 0,
        "address": f"10.0.0.1:{port}",
        "ha_address": "",
        "version": DataVersion(),
        "topics": {t: TopicConfig(topic_name=t) for t in ("T", "U")},
    }
    await registry.register(Registration(**(facts | changes)), port, 0)


async def test_topic_nobody_serves_has_no_route(registry: Registry) -> None:
    await add(registry, "a", port=1)
    assert route_of(registry, "none") is None


async def test_route_has_a_row_and_the_addresses_of_each_broker(registry: Registry) -> None:
    await add(registry, "a", port=1)
    await add(registry, "a", port=2, broker_id=1)
    await add(registry, "b", port=3)
    route = route_of(registry, "T", order_config="a:4;b:4")
    assert route is not None
    assert [row.broker_name for row in route.queue_datas] == ["a", "b"]
    assert [data.broker_addrs for data in route.broker_datas] == [
        {0: "10.0.0.1:1", 1: "10.0.0.1:2"},
        {0: "10.0.0.1:3"},
    ]
    assert route.order_topic_conf == "a:4;b:4"


async def test_route_is_written_in_both_dialects(registry: Registry) -> None:
    await add(registry, "a", port=1)
    route = route_of(registry, "T")
    assert route is not None
    assert b'"brokerAddrs":{0:"10.0.0.1:1"}' in route.encode()
    assert b'"brokerAddrs":{"0":"10.0.0.1:1"}' in route.encode_strict()


async def test_wanted_zone_leaves_out_masters_of_other_zones(registry: Registry) -> None:
    await add(registry, "a", port=1, zone="East", filter_servers=("10.0.0.7:1",))
    await add(registry, "b", port=2, zone="west", filter_servers=("10.0.0.8:1",))
    await add(registry, "c", port=3, broker_id=1, enable_acting_master=False)
    route = route_of(registry, "T", zone="east")
    assert route is not None
    assert [data.broker_name for data in route.broker_datas] == ["a", "c"]
    assert [row.broker_name for row in route.queue_datas] == ["a", "c"]
    assert route.filter_server_table == {"10.0.0.1:1": ["10.0.0.7:1"]}


async def test_smallest_slave_is_shown_as_master_only_where_that_is_wanted(
    registry: Registry,
) -> None:
    for number in (2, 1):
        await add(registry, "a", port=number, broker_id=number, enable_acting_master=True)
    shown = route_of(registry, "T", shows_acting_masters=True)
    plain = route_of(registry, "T")
    assert shown is not None
    assert plain is not None
    assert shown.broker_datas[0].broker_addrs == {0: "10.0.0.1:1", 2: "10.0.0.1:2"}
    assert plain.broker_datas[0].broker_addrs == {1: "10.0.0.1:1", 2: "10.0.0.1:2"}


async def test_real_master_is_shown_as_it_is(registry: Registry) -> None:
    await add(registry, "a", port=1, enable_acting_master=True)
    await add(registry, "a", port=2, broker_id=1, enable_acting_master=True)
    await registry.wipe_write_perm("a")
    route = route_of(registry, "T", shows_acting_masters=True)
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:1", 1: "10.0.0.1:2"}


async def test_showing_an_acting_master_leaves_the_tables_alone(registry: Registry) -> None:
    await add(registry, "a", port=1, broker_id=1, enable_acting_master=True)
    route_of(registry, "T", shows_acting_masters=True)
    assert registry.groups["a"].addresses == {1: "10.0.0.1:1"}


async def test_cluster_info_names_brokers_by_cluster(registry: Registry) -> None:
    await add(registry, "a", port=1)
    await add(registry, "b", port=2, cluster="d")
    info = await cluster_info(registry)
    assert info.cluster_addr_table == {"c": ["a"], "d": ["b"]}
    assert info.broker_addr_table["b"].broker_addrs == {0: "10.0.0.1:2"}


async def test_members_are_those_of_one_cluster(registry: Registry) -> None:
    await add(registry, "a", port=1)
    assert registry.members("c", "a") == {0: "10.0.0.1:1"}
    assert registry.members("d", "a") is None
    assert registry.members("c", "x") is None


async def test_lists_of_topics(registry: Registry) -> None:
    flagged = {f"f{f}": TopicConfig(topic_name=f"f{f}", topic_sys_flag=f) for f in (0, 1, 2, 3)}
    await add(registry, "a", port=1, topics=flagged)
    await add(registry, "b", port=2, cluster="d")
    assert set(await topics_of_cluster(registry, "d")) == {"T", "U"}
    assert await topics_of_cluster(registry, "none") == []
    assert await topics_by_flag(registry, lambda flag: flag == 2) == ["f2"]
    assert await system_topics(registry) == (["c", "d", "a", "b"], "10.0.0.1:1")
    assert await system_topics(Registry()) == ([], None)


async def test_route_of_very_many_brokers_is_the_same(registry: Registry) -> None:
    mapping = TopicQueueMappingInfo(topic="T", bname="b-7", curr_id_map={0: 1})
    for number in range(120):
        await add(
            registry,
            f"b-{number}",
            port=number + 1,
            zone="east" if number % 2 else "west",
            filter_servers=(f"10.0.0.7:{number}",),
            mappings={"T": mapping} if number == 7 else {},
        )
    for zone in (None, "east", "none"):
        short = route_of(registry, "T", order_config="o", zone=zone)
        assert short is not None
        assert await long_route_of(registry, "T", order_config="o", zone=zone) == short
        assert b"".join(short.strict_parts()) == short.encode_strict()
    assert await long_route_of(registry, "none") is None
