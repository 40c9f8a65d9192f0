"""The response of a name server, and the queues of a topic that follow from it."""

from __future__ import annotations

import pytest

from cometmq.client._connection.routes import Route, provisional_route, route_from
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.route import (
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)

MASTER, SLAVE, OTHER = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
TWO = {"a": {0: MASTER}, "b": {0: SLAVE}}


def answer(
    *rows: QueueData, brokers: dict[str, dict[int, str]], order: str | None = None
) -> TopicRouteData:
    return TopicRouteData(
        order_topic_conf=order,
        queue_datas=list(rows),
        broker_datas=[
            BrokerData(cluster="c", broker_name=name, broker_addrs=addresses)
            for name, addresses in brokers.items()
        ],
    )


def row(broker: str, *, read: int = 2, write: int = 2, perm: int = 6) -> QueueData:
    return QueueData(broker_name=broker, read_queue_nums=read, write_queue_nums=write, perm=perm)


def test_queues_are_those_of_each_broker_in_order_of_its_name() -> None:
    route = route_from(
        "t", answer(row("b"), row("a", write=1), brokers={"a": {0: MASTER}, "b": {0: SLAVE}})
    )

    assert route.publish_queues == (
        MessageQueue("t", "a", 0),
        MessageQueue("t", "b", 0),
        MessageQueue("t", "b", 1),
    )
    assert [q.broker_name for q in route.read_queues] == ["a", "a", "b", "b"]


def test_filter_servers_are_those_of_brokers_that_have_some() -> None:
    data = answer(row("a"), row("b"), brokers=TWO)
    data.filter_server_table |= {MASTER: ["10.0.0.7:1", "10.0.0.8:1"], SLAVE: None, OTHER: []}

    assert route_from("t", data).filter_servers == {MASTER: ("10.0.0.7:1", "10.0.0.8:1")}


def test_a_queue_is_written_to_only_with_permission_and_a_master() -> None:
    """A broker without a master can still be read."""
    rows = (row("a", perm=4), row("b"), row("c", perm=2))
    brokers = {"a": {0: MASTER}, "b": {1: SLAVE}, "c": {0: MASTER}}

    route = route_from("t", answer(*rows, brokers=brokers))

    assert {q.broker_name for q in route.publish_queues} == {"c"}
    assert {q.broker_name for q in route.read_queues} == {"a", "b"}


def test_an_order_configuration_alone_decides_where_to_write() -> None:
    route = route_from("t", answer(row("a", write=8), brokers={"a": {0: MASTER}}, order="a:1;b:2"))

    assert [str(q) for q in route.publish_queues] == ["t@a:0", "t@b:0", "t@b:1"]


def test_a_read_goes_to_the_replica_asked_for_else_to_the_next_else_to_any() -> None:
    route = route_from("t", answer(row("a"), brokers={"a": {0: MASTER, 2: SLAVE}}))

    assert route.readable("a") == MASTER
    assert route.readable("a", 2) == SLAVE
    assert route.readable("a", 1) == SLAVE
    assert route.readable("a", 7) == MASTER
    assert route.readable("elsewhere") is None


def test_an_order_configuration_marks_the_topic_and_passes_over_what_it_cannot_read() -> None:
    """Its queues are exactly those it names, whatever permissions and masters there are."""
    data = answer(
        row("a", perm=4), brokers={"a": {1: SLAVE}}, order="a:2; b:1;c;d:x;:3;e:" + "9" * 5_000
    )
    route = route_from("t", data)

    assert route.ordered
    assert [str(q) for q in route.publish_queues] == ["t@a:0", "t@a:1", "t@b:0"]
    assert [q.broker_name for q in route.read_queues] == ["a", "a"]
    assert not route_from("t", answer(row("a"), brokers={"a": {0: MASTER}}, order="")).ordered


def test_a_broker_without_a_master_takes_no_messages_but_gives_some() -> None:
    route = route_from("t", answer(row("a"), brokers={"a": {1: SLAVE}}))

    assert route.publish_queues == ()
    assert route.master("a") is None
    assert route.readable("a") == SLAVE


def test_the_template_gives_a_new_topic_no_more_queues_than_asked_for() -> None:
    """And no more than the template has for reading, even if it has more for writing."""
    template = answer(row("b", read=2, write=9), row("a", read=8, write=1), brokers=TWO)

    route = provisional_route("new", template, 4)

    assert route.provisional
    assert [str(q) for q in route.publish_queues] == [
        *("new@a:0", "new@a:1", "new@a:2", "new@a:3"),
        *("new@b:0", "new@b:1"),
    ]
    assert route.read_queues == route.publish_queues
    assert route.brokers == TWO


def test_a_new_retry_topic_has_one_queue_whatever_the_template_has() -> None:
    """The broker creates it for its group; a copy that is sent to another queue is refused."""
    route = provisional_route("%RETRY%g", answer(row("a", read=8), brokers=TWO), 4)

    assert [str(q) for q in route.publish_queues] == ["%RETRY%g@a:0"]


def test_a_route_in_another_order_is_the_same_route() -> None:
    one = answer(row("a"), row("b"), brokers=TWO)
    other = answer(row("b"), row("a"), brokers=dict(reversed(TWO.items())))

    assert route_from("t", one) == route_from("t", other)


@pytest.mark.parametrize(
    "changed",
    [
        answer(row("a"), row("b", write=3), brokers=TWO),
        answer(row("a"), row("b", perm=4), brokers=TWO),
        answer(row("a"), row("b"), brokers={**TWO, "b": {0: OTHER}}),
        answer(row("a"), brokers=TWO),
        answer(row("a"), row("b"), brokers=TWO, order="a:1"),
    ],
)
def test_a_route_that_says_something_else_is_another_route(changed: TopicRouteData) -> None:
    assert route_from("t", changed) != route_from("t", answer(row("a"), row("b"), brokers=TWO))


def test_whoever_asks_about_a_group_asks_a_master_or_else_some_replica() -> None:
    with_master = route_from("t", answer(row("a"), brokers={"a": {1: SLAVE, 0: MASTER}, "c": {}}))
    without = route_from("t", answer(row("a"), brokers={"a": {1: SLAVE, 2: OTHER}}))

    assert {with_master.any_broker() for _ in range(50)} == {MASTER}
    assert {without.any_broker() for _ in range(200)} == {SLAVE, OTHER}
    assert route_from("t", answer(brokers={})).any_broker() is None


def mapping(broker: str, queue_ids: list[int], *, epoch: int = 1) -> TopicQueueMappingInfo:
    return TopicQueueMappingInfo(
        topic="t",
        total_queues=4,
        bname=broker,
        epoch=epoch,
        curr_id_map=dict.fromkeys(queue_ids, 0),
    )


def static(*mappings: TopicQueueMappingInfo, order: str | None = None) -> Route:
    data = answer(row("a"), row("b"), brokers=TWO, order=order)
    data.topic_queue_mapping_by_broker = {info.bname: info for info in mappings}
    return route_from("t", data)


def test_a_static_topic_has_queues_of_no_broker_that_lead_to_brokers() -> None:
    route = static(mapping("a", [0, 2]), mapping("b", [1]))
    queues = [MessageQueue("t", "__syslo__global__", n) for n in range(4)]

    assert list(route.publish_queues) == list(route.read_queues) == queues
    assert [route.physical(queue) for queue in queues] == ["a", "b", "a", "__syslo__none__"]
    assert [route.master(queue) for queue in queues] == [MASTER, SLAVE, MASTER, None]
    assert route.readable(queues[1]) == SLAVE


def test_of_two_brokers_that_have_a_static_queue_the_later_epoch_is_right() -> None:
    for mappings in (
        (mapping("a", [0], epoch=2), mapping("b", [0], epoch=1)),
        (mapping("b", [0], epoch=1), mapping("a", [0], epoch=2)),
    ):
        route = static(*mappings)
        assert route.physical(route.read_queues[0]) == "a"


def test_an_order_configuration_comes_before_a_static_mapping() -> None:
    route = static(mapping("a", [0, 1, 2, 3]), order="b:1")

    assert [str(q) for q in route.publish_queues] == ["t@b:0"]
    assert len(route.read_queues) == 4


def test_a_queue_of_a_usual_topic_lies_where_it_says() -> None:
    route = route_from("t", answer(row("a"), brokers={"a": {0: MASTER}}))

    assert route.physical(MessageQueue("t", "a", 1)) == "a"
    assert route.master(MessageQueue("t", "a", 1)) == MASTER
