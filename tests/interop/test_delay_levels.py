"""Java clients with levels of a table that is not RocketMQ's default, and that changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mqadmin import MqAdmin
from programs import JAVA_49, JAVA_53, Client, Kind
from servers import Cluster

MakeTopic = Callable[..., str]
MakeGroup = Callable[[], str]
JAVA = pytest.mark.parametrize(
    "kind", [pytest.param(JAVA_49, marks=pytest.mark.long), JAVA_53], ids=str
)

GRAIN_MS = 20
LONG = " ".join(["1s", "2s", "3s", *["1h"] * 15, "10s", "2s"])
"""20 levels, two more than RocketMQ's default."""
SHORT = "1s 4s"
"""Without the level of the first retry, 3."""
GONE_LEVEL, GONE_MS = 19, 10_000


@pytest.fixture(scope="module")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        target, tmp_path_factory.mktemp("cluster"), {"messageDelayLevel": LONG}
    ) as servers:
        yield servers


@JAVA
def test_levels_above_eighteen_and_above_the_last_one(
    kind: Kind, clients: Callable[[Kind], Client], make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, client = make_topic(), clients(kind)
    group = client.group(make_group(), topic, members=1)
    client.send(topic, [{"body": "twenty", "delay": 20}, {"body": "a hundred", "delay": 100}])

    received = group.wait_for(["twenty", "a hundred"])

    for event in received:
        assert event["properties"]["DELAY"] == "20"
        assert event["stored_ms"] - event["born_ms"] >= 2000 - GRAIN_MS
    group.stop()


def test_mqadmin_shows_how_far_each_level_was_delivered(
    target: str,
    cluster: Cluster,
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    messages = [{"body": "is delivered", "delay": 1}, {"body": "waits", "delay": 4}]
    clients(JAVA_53).send(make_topic(), messages)
    expected = {"1": "1,1", "4": "0,1"}
    if target == "4.9.7":  # shows a level from its first delivery on
        del expected["4"]
    with closing(MqAdmin(tmp_path)) as mqadmin:
        deadline = time.monotonic() + 60.0
        while True:
            printed = mqadmin.run(cluster.namesrv, "brokerStatus", "-b", cluster.broker).out
            lines = dict(line.split(":", 1) for line in printed.splitlines() if ":" in line)
            levels = {
                name.strip().rpartition("_")[2]: text.strip()
                for name, text in lines.items()
                if name.startswith("scheduleMessageOffset_")
            }
            levels.pop("20", None)  # of the test before
            if levels == expected:
                return
            assert time.monotonic() < deadline, printed


def test_a_table_that_is_shorter_after_a_restart(
    target: str,
    cluster: Cluster,
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    make_group: MakeGroup,
) -> None:
    """Messages of levels that are gone are still delivered, and retries take the last level."""
    if target != "comet":
        pytest.skip("RocketMQ leaves messages of levels that are gone where they are")
    topic, name, old, new = make_topic(), make_group(), clients(JAVA_49), clients(JAVA_53)
    old.send(topic, [{"body": "of a level that is gone", "delay": GONE_LEVEL}])

    cluster.stop()
    cluster.settings["messageDelayLevel"] = SHORT
    cluster.start()
    group = new.group(name, topic, members=1)
    new.send(topic, [{"body": "retry me"}, {"body": "of the last level", "delay": GONE_LEVEL}])
    group.wait_for(["of a level that is gone", "of the last level", "retry me"])

    events = {(event["body"], event["reconsumed"]): event for event in group.received}
    gone = events["of a level that is gone", 0]
    assert gone["properties"]["DELAY"] == str(GONE_LEVEL)
    assert gone["stored_ms"] - gone["born_ms"] >= GONE_MS - GRAIN_MS
    last = events["of the last level", 0]
    assert last["properties"]["DELAY"] == "2"
    assert 4000 - GRAIN_MS <= last["stored_ms"] - last["born_ms"] < GONE_MS
    again, first = events["retry me", 1], events["retry me", 0]
    assert again["properties"]["DELAY"] == "2"
    assert again["now_ms"] - first["now_ms"] >= 4000 - GRAIN_MS
    group.stop()
