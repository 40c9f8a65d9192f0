"""Filter data: registered by heartbeats, kept over restarts, as bits of bit maps."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest

from cometmq.broker.filters import table as table_module
from cometmq.broker.filters.bloom import BloomFilter, has_all
from cometmq.broker.filters.subscriptions import Subscription
from cometmq.broker.filters.table import FilterData, FilterTable
from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.store import TagMatcher
from unit.broker.conftest import Tables

DAY_MS = 24 * 3_600_000


def sql(
    expression: str = "a > 1", *, topic: str = "T", version: int = 5, kind: str = "SQL92"
) -> Subscription:
    return Subscription(
        SubscriptionData(
            topic=topic, sub_string=expression, expression_type=kind, sub_version=version
        )
    )


def entry(filters: FilterTable, topic: str = "T", group: str = "g") -> FilterData:
    found = filters.find(topic, group)
    assert found is not None
    return found


def reopened(tables: Tables) -> FilterTable:
    again = FilterTable(lambda: tables.settings, tables.file("consumerFilter"), clock=tables.clock)
    again.load()
    return again


# --- bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "keys"), [(1, 1), (99, 1), (1, 1000), (50, 8)])
def test_every_size_that_can_be_set_has_room_for_its_bits(error: int, keys: int) -> None:
    bloom = BloomFilter(error, keys)
    assert bloom.count >= 1
    assert all(0 <= position < bloom.size_bits for position in bloom.positions("g#T"))


# --- registration -----------------------------------------------------------------------------


def test_a_heartbeat_registers_expressions_only(tables: Tables) -> None:
    tables.filters.register("g", [sql(), sql("*", topic="U", kind="TAG")])

    found = entry(tables.filters)
    assert (found.text, found.version, found.is_dead) == ("a > 1", 5, False)
    assert found.born_ms == tables.clock.now_ms()
    assert tables.filters.find("U", "g") is None


def test_the_newest_version_of_an_expression_counts(tables: Tables) -> None:
    filters = tables.filters
    filters.register("g", [sql(version=5)])
    born_ms = entry(filters).born_ms
    tables.clock.advance(10)

    filters.register("g", [sql("a > 9", version=4)])
    assert entry(filters).text == "a > 1"
    filters.register("g", [sql("a > 9", version=5)])
    assert (entry(filters).text, entry(filters).born_ms) == ("a > 1", born_ms)
    filters.register("g", [sql(version=6)])
    assert (entry(filters).version, entry(filters).born_ms) == (6, born_ms)
    filters.register("g", [sql("a > 9", version=7)])
    assert (entry(filters).text, entry(filters).born_ms) == ("a > 9", born_ms + 10)


def test_an_expression_that_is_not_understood_removes_the_one_before(tables: Tables) -> None:
    tables.filters.register("g", [sql(version=5)])
    bad = sql("a >", version=6)
    tables.filters.register("g", [bad])

    assert tables.filters.find("T", "g") is None
    with pytest.raises(ResponseError, match="may be wrong! SQL92 at character 4") as refusal:
        tables.filters.matcher("g", bad, enabled=True)
    assert refusal.value.code == 27


@pytest.mark.parametrize("version", [5, 6])
def test_a_subscription_that_ended_is_dead_until_it_comes_back(
    tables: Tables, version: int
) -> None:
    filters = tables.filters
    filters.register("g", [sql(), sql(topic="U")])
    tables.clock.advance(10)
    filters.register("g", [sql(topic="U")])
    assert (entry(filters).is_dead, entry(filters, "U").is_dead) == (True, False)
    filters.unregister("g")
    assert entry(filters, "U").is_dead
    tables.clock.advance(10)

    born_ms = entry(filters).born_ms
    filters.register("g", [sql(version=version)])

    assert not entry(filters).is_dead
    assert (entry(filters).born_ms, entry(filters).version) == (born_ms, version)
    assert entry(filters, "U").is_dead


async def test_an_older_version_does_not_revive_a_subscription_after_a_start(
    tables: Tables,
) -> None:
    """Perhaps it is the heartbeat of an older member, and that of a newer one follows."""
    tables.filters.register("g", [sql(version=5)])
    await tables.filters.persist()
    again = reopened(tables)
    again.register("g", [sql("a > 9", version=4)])
    assert (entry(again).text, entry(again).is_dead) == ("a > 1", True)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("text", ["a > 1", "a > 9"])
def test_a_subscription_that_ended_is_replaced_by_any_version(
    tables: Tables, text: str, version: int
) -> None:
    """The clock of the client that had subscribed was ahead."""
    tables.filters.register("g", [sql(version=5)])
    tables.filters.unregister("g")
    tables.filters.register("g", [sql(text, version=version)])
    found = entry(tables.filters)
    assert (found.text, found.version, found.is_dead) == (text, version, False)
    assert tables.filters.matcher("g", sql(text, version=version), enabled=True)
    tables.filters.register("g", [sql("a > 7", version=3)])
    assert entry(tables.filters).text == text


def test_a_group_without_expressions_leaves_no_trace(tables: Tables) -> None:
    tables.filters.register("g", [sql("*", kind="TAG")])
    tables.filters.unregister("g")
    assert tables.filters.retry_matcher("%RETRY%g", None) is None


def test_the_table_has_limits(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table_module, "ENTRIES_MAX", 2)
    tables.filters.register("g", [sql(topic=name) for name in ("T", "U", "V", "W")])

    assert tables.filters.find("V", "g") is None
    with pytest.raises(ResponseError, match="has no room for more expressions"):
        tables.filters.matcher("g", sql(topic="V"), enabled=True)
    assert caplog.text.count("the filter data is full") == 1
    monkeypatch.setattr(table_module, "ENTRIES_MAX", 9)
    monkeypatch.setattr(table_module, "CHARS_MAX", 2 * len("a > 1") + 3)
    tables.filters.register("h", [sql("a"), sql("a > 2", topic="U")])
    assert tables.filters.find("T", "h") is not None
    assert tables.filters.find("U", "h") is None


def test_expressions_that_are_dead_make_room_for_others(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table_module, "ENTRIES_MAX", 10)
    for number in range(10):  # groups with a new name for each start
        tables.clock.advance(1)
        tables.filters.register(f"g{number}", [sql()])
        if number > 2:
            tables.filters.unregister(f"g{number}")

    tables.filters.register("h", [sql()])

    assert not entry(tables.filters, group="h").is_dead
    assert [tables.filters.find("T", f"g{number}") is None for number in range(10)] == [
        *([False] * 3),
        True,
        *([False] * 6),
    ]
    for number in range(6):
        tables.filters.register(f"i{number}", [sql()])
    assert "full" not in caplog.text
    tables.filters.register("i6", [sql()])
    assert tables.filters.find("T", "i6") is None
    assert caplog.text.count("the filter data is full") == 1


def test_a_large_expression_makes_room_by_those_that_are_dead(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "CHARS_MAX", 100)
    for number in range(20):
        tables.filters.register(f"g{number}", [sql()])
    tables.filters.unregister("g7")
    tables.filters.register("h", [sql()])
    assert tables.filters.find("T", "h") is not None
    assert tables.filters.find("T", "g7") is None


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_keep_the_table_consistent(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The parameter is the seed. What is alive stays, whatever room others need."""
    monkeypatch.setattr(table_module, "ENTRIES_MAX", 12)
    monkeypatch.setattr(table_module, "CHARS_MAX", 120)
    dice = random.Random(seed)
    texts = ["a > 1", "b = 'x'", "a >", "c IS NULL OR d CONTAINS 'long'"]
    filters = tables.filters
    for _ in range(200):
        tables.clock.advance(dice.randrange(3))
        group = f"g{dice.randrange(6)}"
        alive = {
            (data.group, data.topic): data.text for data in filters._entries() if not data.is_dead
        }
        if dice.random() < 0.3:
            filters.unregister(group)
        else:
            wanted = [
                sql(dice.choice(texts), topic=topic, version=dice.randrange(4))
                if dice.random() < 0.8
                else sql("*", topic=topic, kind="TAG")
                for topic in dice.sample("TUVW", dice.randrange(4))
            ]
            filters.register(group, wanted)
            for subscription in wanted:
                found = filters.find(subscription.topic, group)
                assert (
                    found is None
                    or subscription.is_by_tags
                    or not found.is_dead
                    or (found.version > subscription.version)
                )
        entries = filters._entries()
        others = {key: text for key, text in alive.items() if key[0] != group}
        assert (
            others.items() <= {(d.group, d.topic): d.text for d in entries if not d.is_dead}.items()
        )
        assert filters._count == len(entries) <= 12
        assert filters._chars == sum(len(data.text) for data in entries) <= 120
        for name, topic in filters._topics.items():
            own = [data for data in entries if data.topic == name]
            assert {data.group: data for data in own} == topic.groups
            assert (topic.cost, topic.searches) == (
                sum(data.cost for data in own),
                sum(data.searches for data in own),
            )


# --- matchers ---------------------------------------------------------------------------------


def test_a_pull_is_refused_in_the_order_of_rocketmq(tables: Tables) -> None:
    def refusal(subscription: Subscription, *, enabled: bool) -> int:
        with pytest.raises(ResponseError) as refused:
            tables.filters.matcher("g", subscription, enabled)
        return refused.value.code

    assert refusal(sql(), enabled=False) == 27
    tables.filters.register("g", [sql()])
    assert refusal(sql(version=6), enabled=False) == 28
    assert refusal(sql(), enabled=False) == 1
    matcher = tables.filters.matcher("g", sql(), enabled=True)
    assert matcher is not None
    assert matcher.matches_properties(b"a\x012\x02")


def test_bit_maps_decide_for_messages_that_were_stored_since(tables: Tables) -> None:
    tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
    tables.filters.register("g", [sql("a > 1")])
    tables.filters.register("h", [sql("a < 1")])
    matcher = tables.filters.matcher("g", sql("a > 1"), enabled=True)
    assert matcher is not None
    hit = tables.filters.bitmap_of("T", b"a\x012\x02", 0, 1)
    miss = tables.filters.bitmap_of("T", b"a\x010\x02", 0, 1)
    born_ms = entry(tables.filters).born_ms

    assert len(hit) == len(miss) == 14
    assert (
        matcher.matches_bitmap(born_ms + 1, hit),
        matcher.matches_bitmap(born_ms + 1, miss),
    ) == (
        True,
        False,
    )
    assert matcher.matches_bitmap(born_ms, miss)  # perhaps stored before the group subscribed
    assert matcher.matches_bitmap(born_ms + 1, b"")
    assert matcher.matches_bitmap(born_ms + 1, bytes(13))


def test_bit_maps_of_messages_whose_store_time_is_ahead_decide_nothing(tables: Tables) -> None:
    """The clock was set back, or that of the master of this slave is ahead."""
    tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
    tables.filters.register("h", [sql("a < 1")])
    ahead_ms = tables.clock.now_ms() + 5_000
    before = tables.filters.bitmap_of("T", b"a\x012\x02", ahead_ms, 1)
    tables.filters.register("g", [sql("a > 1")])
    matcher = tables.filters.matcher("g", sql("a > 1"), enabled=True)
    assert matcher is not None
    assert matcher.matches_bitmap(ahead_ms, before)
    since = tables.filters.bitmap_of("T", b"a\x010\x02", ahead_ms + 1, 1)
    assert not matcher.matches_bitmap(ahead_ms + 1, since)


def test_dead_subscriptions_keep_their_bits(tables: Tables) -> None:
    tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
    tables.filters.register("g", [sql("a > 1")])
    tables.filters.unregister("g")
    bitmap = tables.filters.bitmap_of("T", b"a\x012\x02", 0, 1)
    assert has_all(bitmap, entry(tables.filters).bits)


def test_bit_maps_that_would_take_long_are_left_out(tables: Tables) -> None:
    properties = b"a\x012\x02"
    tables.filters.register("g", [sql("a > 1")])
    assert tables.filters.bitmap_of("T", properties, 0, 1) == b""  # they are off
    tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
    assert tables.filters.bitmap_of("U", properties, 0, 1) == b""
    assert tables.filters.bitmap_of("T", properties, 0, 1_000) != b""
    assert tables.filters.bitmap_of("T", properties, 0, 9_000) == b""
    tables.filters.register("h", [sql(" OR ".join(["a > 1"] * 1_000))])
    assert tables.filters.bitmap_of("T", properties, 0, 1) == b""
    tables.filters.register("h", [sql("a > 2", version=6)])
    assert tables.filters.bitmap_of("T", properties, 0, 1) != b""


def test_searches_in_large_properties_get_no_bit_map(tables: Tables) -> None:
    """Each CONTAINS may take 0.3 ms in 32 KB; the event loop would wait for all of them."""
    tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
    large = b"a\x01" + b"x" * 32_000 + b"\x02"
    tables.filters.register("g", [sql(" or ".join(["a contains 'xxy'"] * 64))])
    assert tables.filters.bitmap_of("T", b"a\x01xxy\x02", 0, 1) != b""
    assert tables.filters.bitmap_of("T", large, 0, 1) == b""
    tables.filters.register("g", [sql("a contains 'xxy'", version=6)])
    assert tables.filters.bitmap_of("T", large, 0, 1) != b""


@pytest.mark.parametrize(
    ("properties", "matches"),
    [
        (b"RETRY_TOPIC\x01T\x02a\x012\x02", True),
        (b"RETRY_TOPIC\x01T\x02a\x010\x02", False),
        (b"RETRY_TOPIC\x01U\x02a\x010\x02", True),
        (b"a\x010\x02", True),
    ],
)
def test_retries_are_filtered_by_the_expression_for_their_first_topic(
    tables: Tables, properties: bytes, matches: bool
) -> None:
    tables.filters.register("g", [sql("a > 1")])
    matcher = tables.filters.retry_matcher("%RETRY%g", TagMatcher(frozenset({7})))
    assert matcher is not None
    assert matcher.needs_properties
    assert (matcher.matches_tags(7), matcher.matches_tags(8)) == (True, False)
    assert matcher.matches_bitmap(2**62, bytes(14))
    assert matcher.matches_properties(properties) == matches


def test_retries_are_not_filtered_by_an_expression_that_has_ended(tables: Tables) -> None:
    """The group subscribes by tags now: its messages need not match what it selected before."""
    properties = b"RETRY_TOPIC\x01T\x02a\x010\x02"
    tables.filters.register("g", [sql("a > 1", version=5)])
    tables.filters.register("g", [sql("*", version=6, kind="TAG")])
    matcher = tables.filters.retry_matcher("%RETRY%g", None)
    assert matcher is None or matcher.matches_properties(properties)
    tables.filters.register("g", [sql("a > 1", version=7)])
    matcher = tables.filters.retry_matcher("%RETRY%g", None)
    assert matcher is not None
    assert not matcher.matches_properties(properties)


# --- the file ---------------------------------------------------------------------------------


async def test_filter_data_are_dead_after_a_restart_until_the_first_heartbeat(
    tables: Tables,
) -> None:
    tables.filters.register("g", [sql()])
    tables.filters.register("h", [sql("b = 'x'")])
    tables.filters.unregister("h")
    dead_ms = entry(tables.filters, group="h").dead_ms
    born_ms = entry(tables.filters).born_ms
    await tables.filters.persist()
    tables.clock.advance(40_000)

    again = reopened(tables)

    assert entry(again).dead_ms == born_ms + 10_000
    assert entry(again, group="h").dead_ms == dead_ms
    assert entry(again).positions == entry(tables.filters).positions
    again.register("g", [sql()])
    assert not entry(again).is_dead


async def test_bit_maps_before_a_kill_decide_nothing(tables: Tables) -> None:
    """The last file has the expression of the group from before its bits were computed."""
    tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
    tables.filters.register("g", [sql("a > 1")])
    await tables.filters.persist()
    tables.clock.advance(1)
    tables.filters.register("g", [sql("a < 1", version=6)])
    tables.clock.advance(1)
    stored_ms = tables.clock.now_ms()
    bitmap = tables.filters.bitmap_of("T", b"a\x012\x02", 0, 1)
    tables.clock.advance(1)

    again = reopened(tables)
    again.renew_births()
    assert entry(again).is_dead
    again.register("g", [sql("a > 1")])

    matcher = again.matcher("g", sql("a > 1"), enabled=True)
    assert matcher is not None
    assert not entry(again).is_dead
    assert matcher.matches_bitmap(stored_ms, bitmap)
    assert not matcher.matches_bitmap(tables.clock.now_ms() + 1, bytes(14))


async def test_the_file_is_written_if_anything_has_changed(tables: Tables) -> None:
    path = tables.config / "consumerFilter.json"
    await tables.filters.persist()
    assert not path.exists()
    tables.filters.register("g", [sql()])
    await tables.filters.persist()
    path.unlink()
    tables.filters.register("g", [sql()])
    await tables.filters.persist()
    assert not path.exists()
    tables.filters.unregister("g")
    tables.filters.persist_now()
    assert path.exists()


async def test_a_failed_write_is_repeated(tables: Tables) -> None:
    tables.filters.register("g", [sql()])
    obstacle = tables.config / "consumerFilter.json.tmp"
    obstacle.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"consumerFilter\.json"):
        await tables.filters.persist()
    obstacle.rmdir()
    await tables.filters.persist()
    assert entry(reopened(tables)).text == "a > 1"


async def test_subscriptions_that_are_dead_for_a_day_are_removed(tables: Tables) -> None:
    tables.filters.register("g", [sql(), sql(topic="U")])
    tables.filters.register("g", [sql(topic="U")])
    tables.clock.advance(DAY_MS - 1)
    await tables.filters.persist()
    assert tables.filters.find("T", "g") is not None
    tables.clock.advance(1)
    await tables.filters.persist()
    assert tables.filters.find("T", "g") is None
    assert tables.filters.find("U", "g") is not None


@pytest.mark.parametrize("change", [{"bitNum": 104}, {"bitPos": [1, 2]}, None])
async def test_a_file_with_other_bits_is_ignored(
    tables: Tables, change: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    tables.filters.register("g", [sql()])
    await tables.filters.persist()
    path = tables.config / "consumerFilter.json"
    content = json.loads(path.read_text())
    data = content["filterDataByTopic"]["T"]["groupFilterData"]["g"]
    if change is None:
        del data["bloomFilterData"]
    else:
        data["bloomFilterData"] |= change
    path.write_text(json.dumps(content))

    assert reopened(tables).find("T", "g") is None
    assert "filter data ignored topic=T group=g: met bits for bit maps of" in caplog.text


def test_an_expression_of_another_release_is_left_out(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    tables.filters.register("g", [sql(), sql("b = 1", topic="U")])
    tables.filters.persist_now()
    path = tables.config / "consumerFilter.json"
    path.write_text(path.read_text().replace("b = 1", "b !! 1"))

    again = reopened(tables)

    assert again.find("T", "g") is not None
    assert again.find("U", "g") is None
    assert "filter data ignored topic=U group=g: SQL92 at character 3" in caplog.text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clientVersion": 2**63}, "clientVersion 9223372036854775808, expected a time up to now"),
        ({"clientVersion": 10**400}, "expected a time up to now"),
        ({"clientVersion": -1}, "clientVersion -1, expected"),
        ({"clientVersion": "soon"}, "met soon in a JSON text, expected a number"),
        ({"clientVersion": [1]}, "expected a number"),
        ({"bornTime": 2**62}, "bornTime 4611686018427387904, expected a time up to now"),
        ({"deadTime": 2**62}, "deadTime 4611686018427387904, expected a time up to now"),
        ({"bloomFilterData": 7}, "expected an object of BloomData"),
        ({"expression": "a" * 32_769}, "an expression of 32769 characters, expected 32768 at most"),
        ({"expressionType": "LUA"}, "met the expression type 'LUA', expected TAG or SQL92"),
        ({"expressionType": "TAG"}, "met the expression type 'TAG', expected SQL92"),
    ],
)
def test_an_entry_that_no_heartbeat_could_have_made_is_left_out(
    tables: Tables, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str
) -> None:
    content = stored(tables)
    content["filterDataByTopic"]["U"]["groupFilterData"]["g"] |= change
    write(tables, content)

    again = reopened(tables)

    assert again.find("T", "g") is not None
    assert again.find("U", "g") is None
    assert "filter data ignored topic=U group=g: " in caplog.text
    assert reason in caplog.text
    again.register("g", [sql("b = 2", topic="U", version=6)])
    assert entry(again, "U").text == "b = 2"


@pytest.mark.parametrize("name", ["", "a b", "n" * 300])
@pytest.mark.parametrize("part", ["topic", "group"])
def test_entries_of_wrong_names_are_left_out(tables: Tables, name: str, part: str) -> None:
    content = stored(tables)
    topics = content["filterDataByTopic"]
    if part == "topic":
        topics[name] = topics.pop("U")
    else:
        groups = topics["U"]["groupFilterData"]
        groups[name] = groups.pop("g")
    write(tables, content)

    again = reopened(tables)

    assert again.find("T", "g") is not None
    assert again._count == 1


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"filterDataByTopic": 7}',
    ],
)
def test_a_file_of_another_form_does_not_stop_the_start(
    tables: Tables, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    tables.config.mkdir(exist_ok=True)
    (tables.config / "consumerFilter.json").write_text(text)

    again = reopened(tables)

    assert "filter data ignored, heartbeats register the expressions again path=" in caplog.text
    again.register("g", [sql()])
    again.persist_now()
    assert entry(reopened(tables)).text == "a > 1"


@pytest.mark.parametrize("groups", [[], 7, {"groupFilterData": [7]}, {"groupFilterData": None}])
def test_a_topic_of_another_form_is_left_out(
    tables: Tables, caplog: pytest.LogCaptureFixture, groups: Any
) -> None:
    content = stored(tables)
    content["filterDataByTopic"]["A"] = groups
    write(tables, content)

    again = reopened(tables)

    assert (again.find("T", "g") is not None, again.find("U", "g") is not None) == (True, True)
    assert "filter data ignored topic=A: met " in caplog.text


def test_the_file_has_the_limits_of_the_table(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables.filters.register("g", [sql(topic=f"T{number}") for number in range(50)])
    tables.filters.persist_now()
    monkeypatch.setattr(table_module, "ENTRIES_MAX", 20)

    again = reopened(tables)

    assert sum(again.find(f"T{number}", "g") is not None for number in range(50)) == 20
    assert caplog.text.count("expected 20 entries of 4000000 characters at most") == 10
    assert "ignored=30 loaded=20" in caplog.text
    monkeypatch.setattr(table_module, "CHARS_MAX", 2 * len("a > 1"))
    assert sum(reopened(tables).find(f"T{n}", "g") is not None for n in range(50)) == 2


def stored(tables: Tables) -> dict[str, Any]:
    """Return the content of a file with the expressions of a group for the topics T and U."""
    tables.filters.register("g", [sql(), sql("b = 1", topic="U")])
    tables.filters.persist_now()
    content: dict[str, Any] = json.loads((tables.config / "consumerFilter.json").read_text())
    return content


def write(tables: Tables, content: dict[str, Any]) -> None:
    (tables.config / "consumerFilter.json").write_text(json.dumps(content))
