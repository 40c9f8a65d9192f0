"""Groups of consumers and producers that are online, and notifications of their members."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.broker.clients.consumers import ConsumerGroup, ConsumerRegistry
from cometmq.broker.clients.members import SILENT_MS_MAX
from cometmq.broker.clients.producers import CLIENT_IDS_MAX, GROUPS_MAX, ProducerRegistry
from cometmq.broker.filters.subscriptions import Subscription
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.remoting import Connection
from cometmq.system.failure_log import LINES_MAX
from support.checks.manual_clock import ManualClock
from support.wire.memory_link import link


class Online:
    """A registry of consumers and what it has told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changed: list[tuple[str, int]] = []
        self.registry = ConsumerRegistry(self.clock, on_change=self._on_change)

    def _on_change(self, group: ConsumerGroup) -> None:
        self.changed.append((group.name, len(group.members)))

    def beat(
        self,
        connection: Connection,
        client: str = "c",
        group: str = "g",
        *,
        topics: dict[str, int] | None = None,
        notify: bool = True,
        without_topics: bool = False,
    ) -> bool:
        subscriptions = [
            Subscription(
                SubscriptionData(topic=topic, sub_string=f"v{version}", sub_version=version)
            )
            for topic, version in (topics or {"T": 1}).items()
        ]
        return self.registry.register(
            connection,
            client,
            group,
            kind="CONSUME_PASSIVELY",
            model="CLUSTERING",
            consume_from="CONSUME_FROM_LAST_OFFSET",
            subscriptions=None if without_topics else subscriptions,
            notify=notify,
        )


@pytest.fixture
async def online() -> Online:
    return Online()


def new_connection() -> Connection:
    return link()[0]


async def test_a_new_member_is_a_change_and_the_same_again_is_none(online: Online) -> None:
    one, two = new_connection(), new_connection()
    assert online.beat(one, "a")
    assert not online.beat(one, "a")
    assert online.beat(two, "b")
    assert online.changed == [("g", 1), ("g", 2)]
    assert online.registry.client_ids("g") == ["a", "b"]


async def test_nobody_is_told_where_the_group_wants_no_notices(online: Online) -> None:
    assert online.beat(new_connection(), notify=False)
    assert online.changed == []


async def test_the_last_heartbeat_decides_the_topics(online: Online) -> None:
    one = new_connection()
    online.beat(one, topics={"T": 1, "U": 1})
    assert online.beat(one, topics={"U": 1, "V": 1})
    group = online.registry.group("g")
    assert group is not None
    assert group.subscriptions.keys() == {"U", "V"}


async def test_of_two_expressions_the_younger_one_counts(online: Online) -> None:
    one, two = new_connection(), new_connection()
    online.beat(one, "a", topics={"T": 5})
    online.beat(two, "b", topics={"T": 3})
    group = online.registry.group("g")
    assert group is not None
    assert group.subscriptions["T"].version == 5
    assert not online.beat(two, "b", topics={"T": 7})
    assert group.subscriptions["T"].version == 7


async def test_a_heartbeat_without_topics_leaves_them(online: Online) -> None:
    one = new_connection()
    online.beat(one, topics={"T": 1})
    assert not online.beat(one, without_topics=True)
    group = online.registry.group("g")
    assert group is not None
    assert group.subscriptions.keys() == {"T"}


async def test_unregistering_tells_those_who_stay(online: Online) -> None:
    one, two = new_connection(), new_connection()
    online.beat(one, "a")
    online.beat(two, "b")
    online.changed.clear()
    online.registry.unregister(one, "a", "g")
    assert online.changed == [("g", 1)]
    online.registry.unregister(two, "b", "g")
    assert online.registry.group("g") is None


async def test_a_stranger_cannot_take_out_a_member(online: Online) -> None:
    one, two = new_connection(), new_connection()
    online.beat(one, "a")
    online.registry.unregister(two, "a", "g")
    online.registry.unregister(one, "b", "g")
    online.registry.unregister(one, "a", "other")
    assert online.registry.client_ids("g") == ["a"]


async def test_a_closed_connection_leaves_all_its_groups(online: Online) -> None:
    one, two = new_connection(), new_connection()
    for group in ("g", "h"):
        online.beat(one, "a", group)
    online.beat(two, "b", "g")
    online.changed.clear()
    online.registry.connection_closed(one)
    online.registry.connection_closed(one)
    assert online.changed == [("g", 1)]
    assert online.registry.group("h") is None


async def test_a_connection_that_changes_its_client_id_stays_one_member(
    online: Online, caplog: pytest.LogCaptureFixture
) -> None:
    one = new_connection()
    online.beat(one, "a")
    assert not online.beat(one, "b")
    assert online.registry.client_ids("g") == ["b"]
    (record,) = caplog.records
    assert (record.levelname, record.getMessage().partition(" group=")[0]) == (
        "WARNING", "connection changed its client id",
    )  # fmt: skip


async def test_the_log_stays_short_however_often_heartbeats_change_ids_and_topics(
    online: Online, caplog: pytest.LogCaptureFixture
) -> None:
    online.beat(new_connection(), "other")
    one = new_connection()
    for number in range(3 * LINES_MAX):
        online.beat(one, f"c{number}", topics={f"T{number}": 1})
    assert len(caplog.records) == LINES_MAX
    silent = new_connection()
    for number in range(3 * LINES_MAX):
        online.beat(silent, "c", f"g{number}")
    online.clock.advance(SILENT_MS_MAX + 1)
    caplog.clear()
    online.registry.sweep()
    assert len(caplog.records) == LINES_MAX


async def test_silent_members_are_removed_and_their_connections_closed(online: Online) -> None:
    one, two = new_connection(), new_connection()
    online.beat(one, "a")
    online.clock.advance(SILENT_MS_MAX)
    online.beat(two, "b")
    assert online.registry.sweep() == []
    online.clock.advance(1)
    assert [member.client_id for member in online.registry.sweep()] == ["a"]
    assert one.closed
    assert not two.closed
    assert online.registry.client_ids("g") == ["b"]


async def test_a_producer_is_found_by_its_id_until_it_leaves_its_last_group() -> None:
    producers = ProducerRegistry(ManualClock())
    one = new_connection()
    producers.register(one, "a", "p")
    producers.register(one, "a", "q")
    producers.unregister(one, "a", "p")
    assert producers.members("p") == []
    assert producers.connection_of("a") is one
    producers.unregister(one, "a", "q")
    assert producers.connection_of("a") is None
    assert producers.names() == []


async def test_a_producer_that_comes_back_is_found_at_its_new_connection() -> None:
    producers = ProducerRegistry(ManualClock())
    old, new = new_connection(), new_connection()
    producers.register(old, "a", "p")
    producers.register(new, "a", "p")
    producers.connection_closed(old)
    assert producers.connection_of("a") is new
    assert [member.connection for member in producers.members("p")] == [new]


async def test_a_client_id_stays_with_the_open_connection_of_another_account(
    caplog: pytest.LogCaptureFixture,
) -> None:
    producers = ProducerRegistry(ManualClock())
    mine, anew, other = new_connection(), new_connection(), new_connection()
    producers.register(mine, "a", "p", "me")
    producers.register(other, "a", "p", "another")
    assert producers.connection_of("a") is mine
    assert "client id of an open connection of another account" in caplog.text
    producers.register(anew, "a", "p", "me")
    assert producers.connection_of("a") is anew
    producers.connection_closed(other)
    assert producers.connection_of("a") is anew
    anew.close()
    producers.register(other, "a", "p", "another")
    assert producers.connection_of("a") is other


async def test_all_ids_of_a_producers_connection_go_with_it() -> None:
    producers = ProducerRegistry(ManualClock())
    one = new_connection()
    producers.register(one, "a", "p")
    producers.register(one, "b", "p")
    producers.connection_closed(one)
    assert producers.connection_of("a") is None
    assert producers.connection_of("b") is None


async def test_a_connection_has_some_client_ids_however_many_it_names() -> None:
    producers = ProducerRegistry(ManualClock())
    one, other = new_connection(), new_connection()
    producers.register(one, "c0", "p")
    producers.register(other, "c0", "p")
    for number in range(3 * CLIENT_IDS_MAX):
        producers.register(one, f"c{number}", "p")
    found = [producers.connection_of(f"c{number}") for number in range(3 * CLIENT_IDS_MAX)]
    assert found.count(one) == CLIENT_IDS_MAX
    assert found[-1] is one
    producers.register(other, "c0", "p")
    producers.connection_closed(one)
    assert producers.connection_of("c0") is other


async def test_a_connection_has_a_limit_of_producer_groups() -> None:
    producers = ProducerRegistry(ManualClock())
    one = new_connection()
    for number in range(GROUPS_MAX):
        producers.register(one, "a", f"p{number}")
    producers.check_room(one, ["p0", "p1"])
    with pytest.raises(ResponseError, match=f"{GROUPS_MAX + 1} producer groups"):
        producers.check_room(one, ["p0", "another"])
    producers.unregister(one, "a", "p0")
    producers.check_room(one, ["another"])


async def test_silent_producers_are_removed() -> None:
    clock = ManualClock()
    producers = ProducerRegistry(clock)
    one = new_connection()
    producers.register(one, "a", "p")
    clock.advance(SILENT_MS_MAX + 1)
    assert [member.client_id for member in producers.sweep()] == ["a"]
    await asyncio.sleep(0)
    assert one.closed


async def test_two_living_connections_of_one_client_id_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    online = Online()
    (one, _), (other, _) = link(), link()

    def heartbeat(connection: Connection) -> str:
        caplog.clear()
        online.clock.advance(30_000)
        online.beat(connection)
        return caplog.text

    assert heartbeat(one) == ""
    assert heartbeat(one) == ""
    assert heartbeat(other) == "", "it may have reconnected"
    assert heartbeat(other) == "", "the old connection is silent"
    for connection in (one, other, one):
        assert "two living clients have one client id" in heartbeat(connection)
    assert "group=g client=c peers=" in caplog.text
