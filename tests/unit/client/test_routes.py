"""How a name server's answer becomes the queues of a topic."""

from __future__ import annotations

from cometmq.client.routes import Route, provisional_route, route_from
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import BrokerData, QueueData, TopicRouteData

MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


def answer(*rows: QueueData, brokers: dict[str, dict[int, str]], order: str | None = None):
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


def test_the_template_gives_a_new_topic_no_more_queues_than_asked_for() -> None:
    template = route_from("TBW102", answer(row("a", write=8), brokers={"a": {0: MASTER}}))

    route = provisional_route("new", template, 4)

    assert route == Route(
        "new", route.publish_queues, route.publish_queues, {"a": {0: MASTER}}, True
    )
    assert route.publish_queues == tuple(MessageQueue("new", "a", n) for n in range(4))
