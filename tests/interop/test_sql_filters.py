"""SQL92 filters: foreign clients at our broker, and filter stores that cross over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kit
import pytest
from codes import Request
from programs import GO, JAVA_49, JAVA_53, Client, CommandError, Kind
from servers import (
    SMALL_FILES,
    Cluster,
    CometBroker,
    CometNameServer,
    RealBroker,
    Settings,
    connect,
    copy_store,
)
from wire import Connection

MakeTopic = Callable[..., str]
MakeGroup = Callable[[], str]

FILTERS: Settings = SMALL_FILES | {
    "enablePropertyFilter": True,
    "enableCalcFilterBitMap": True,
    "enableConsumeQueueExt": True,
    "mappedFileSizeConsumeQueueExt": 1 << 20,
    "filterSupportRetry": True,
}
TOPIC, GROUP, VERSION = "Orders", "billing", 7
EXPRESSION = "n BETWEEN 3 AND 5 AND color IN ('red', 'blue')"
COLORS = ("red", "green", "blue")
MESSAGES = 60
MORE = 6


@pytest.fixture(scope="module")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Servers that filter by properties, and keep bit maps."""
    with Cluster(target, tmp_path_factory.mktemp("cluster"), FILTERS) as servers:
        yield servers


@pytest.fixture(scope="module", params=[JAVA_49, JAVA_53, GO], ids=str)
def client(request: pytest.FixtureRequest, clients: Callable[[Kind], Client]) -> Client:
    return clients(request.param)


def book(n: int, kind: str = "book") -> dict[str, Any]:
    return {"body": f"{kind}-{n}", "properties": {"n": str(n), "kind": kind}}


def test_a_group_gets_what_its_expression_selects(
    client: Client, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic()
    client.send(topic, [book(n, kind) for n in range(10) for kind in ("book", "pen")])
    group = client.group(make_group(), topic, sql="n BETWEEN 5 AND 7 AND kind = 'book'")
    first = {f"book-{n}" for n in (5, 6, 7)}
    group.wait_for(first)

    # Its pulls are held now: what does not match wakes none of them.
    client.send(topic, [book(9), book(5, "pen"), book(6)])
    client.send(topic, [{"body": "retry", "properties": {"n": "7", "kind": "book"}}])
    group.wait_for({*first, "retry"})

    bodies = group.bodies()
    assert sorted(set(bodies)) == ["book-5", "book-6", "book-7", "retry"]
    assert bodies.count("retry") <= 2
    group.stop()


def test_a_retry_comes_again_through_the_filter(
    client: Client, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic()
    group = client.group(make_group(), topic, sql="n = 1", members=1)
    client.send(topic, [{"body": "retry me", "properties": {"n": "1"}}])

    kit.eventually(lambda: len(group.received) >= 2, timeout=120.0)

    assert [event["body"] for event in group.received] == ["retry me"] * 2
    group.stop()


@pytest.mark.parametrize("kind", [JAVA_49, JAVA_53], ids=str)
def test_an_expression_that_does_not_compile_is_refused_with_the_reason(
    kind: Kind, clients: Callable[[Kind], Client], make_topic: MakeTopic, make_group: MakeGroup,
    target: str,
) -> None:  # fmt: skip
    reason = "SQL92 at character 4: met" if target == "comet" else "n >"
    with pytest.raises(CommandError, match=reason):
        clients(kind).group(make_group(), make_topic(), members=1, sql="n >")


# --- stores that cross over ---------------------------------------------------------------------


def subscribe(broker: Connection) -> None:
    data = kit.subscription(TOPIC, EXPRESSION, kind="SQL92", version=VERSION)
    kit.ok(kit.heartbeat(broker, "10.0.0.1@filters", kit.consumer(GROUP, data)))


def fill(broker: Connection, first: int, count: int) -> None:
    for number in range(first, first + count):
        properties = {"n": str(number % 10), "color": COLORS[number % 3]}
        kit.store(broker, TOPIC, b"%d" % number, properties=properties)
    kit.wait_for_queue(broker, TOPIC, first + count)


def wanted(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count) if 3 <= n % 10 <= 5 and n % 3 != 1]


def selected(broker: Connection) -> list[bytes]:
    """All that the group gets, by the subscription of its heartbeat."""
    found: list[bytes] = []
    offset, end = 0, kit.max_offset(broker, TOPIC)
    while offset < end:
        answer = kit.pull(broker, GROUP, TOPIC, offset, expression=None, version=VERSION)
        assert answer.code in (0, 20), str(answer.answer)
        found += answer.bodies
        offset = answer.next_offset
    return found


def entries(broker: Connection, count: int) -> Any:
    """What the tools show of the queue, and of the group's filter.

    RocketMQ shows the address of an extension unit as the tags code.
    """
    fields = {
        "topic": TOPIC, "queueId": 0, "index": 0, "count": count, "consumerGroup": GROUP,
    }  # fmt: skip
    shown = kit.ok(broker.request(Request.QUERY_CONSUME_QUEUE, fields)).json()
    for entry in shown["queueData"]:
        del entry["tagsCode"]
    return shown


def begin(broker: Connection) -> None:
    kit.ok(kit.create_topic(broker, TOPIC, read=1, write=1))
    kit.ok(kit.create_group(broker, GROUP))
    subscribe(broker)


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with CometNameServer(tmp_path_factory.mktemp("names")) as server:
        yield server.address


Servers = Callable[[str, Path], RealBroker | CometBroker]


@pytest.fixture
def broker_on(name_server: str, tmp_path: Path) -> Iterator[Servers]:
    """Start a broker of a version, or ours, on a store."""
    started: list[RealBroker | CometBroker] = []

    def start(version: str, store: Path) -> RealBroker | CometBroker:
        folder = tmp_path / f"broker-{len(started)}"
        made: RealBroker | CometBroker
        if version == "comet":
            made = CometBroker(folder, name_server, store=store, settings=FILTERS)
        else:
            made = RealBroker(version, folder, name_server, store=store, settings=FILTERS)
        started.append(made)
        made.start()
        return made

    yield start
    for server in started:
        server.kill()


@pytest.mark.parametrize("version", [pytest.param("4.9.7", marks=pytest.mark.long), "5.3.3"])
@pytest.mark.parametrize(
    "ours_first",
    [True, pytest.param(False, marks=pytest.mark.long)],
    ids=["ours-first", "theirs-first"],
)
def test_a_store_with_filters_crosses_over(
    version: str, ours_first: bool, broker_on: Servers, tmp_path: Path
) -> None:
    first, second = ("comet", version) if ours_first else (version, "comet")
    store = tmp_path / "store"
    before = broker_on(first, store)
    writer = connect(before.address)
    begin(writer)
    fill(writer, 0, MESSAGES)
    assert selected(writer) == wanted(MESSAGES)
    shown = entries(writer, MESSAGES)
    writer.close()
    before.stop()
    left = json.loads((store / "config" / "consumerFilter.json").read_text())
    moved = copy_store(store, tmp_path / "moved")

    after = broker_on(second, moved)
    reader = connect(after.address)
    subscribe(reader)

    assert selected(reader) == wanted(MESSAGES)
    again = entries(reader, MESSAGES)
    assert again["queueData"] == shown["queueData"]
    known = json.loads(again["filterData"])
    data = left["filterDataByTopic"][TOPIC]["groupFilterData"][GROUP]
    same = ("bloomFilterData", "clientVersion", "expression", "expressionType", "topic")
    assert [known[name] for name in same] == [data[name] for name in same]
    fill(reader, MESSAGES, MORE)
    assert selected(reader) == wanted(MESSAGES + MORE)
    reader.close()
    after.stop()
