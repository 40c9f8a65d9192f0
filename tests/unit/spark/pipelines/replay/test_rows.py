"""Archived rows as rows to send again, and the limit of their rate."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import ConfigError
from cometmq.protocol.compression import compress_body
from cometmq.spark.errors import PlaceError
from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.pipelines.archive.manifest import ArchiveFile, Entry, Manifest, QueueRows
from cometmq.spark.pipelines.archive.reading import COLUMNS
from cometmq.spark.pipelines.replay import pipeline as replay_module
from cometmq.spark.pipelines.replay.pace import Pace
from cometmq.spark.pipelines.replay.pipeline import (
    ReplaySettings,
    Sending,
    Share,
    portions,
    replay,
    shares,
)
from cometmq.spark.pipelines.replay.rows import Choice, Rewriting
from cometmq.spark.pipelines.running.folders import DiskFolder
from cometmq.spark.pipelines.running.instants import instant_ms
from cometmq.spark.schema import arrow_schema
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import opened, put

MS = 1_700_000_000_000


def row(offset: int, **more: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "broker_name": "b",
        "queue_id": 0,
        "queue_offset": offset,
        "msg_id": f"id{offset}",
        "body": b"b%d" % offset,
        "tags": None,
        "keys": None,
        "store_timestamp": (MS + offset) * 1000,
        "sys_flag": 0,
        "flag": 0,
        "phy_offset": offset * 100,
        "properties": {"own": "x", "UNIQ_KEY": f"id{offset}"},
        **more,
    }


def table(*rows: dict[str, Any]) -> pa.Table:
    names = set(rows[0])
    fields = [field for field in arrow_schema(COLUMNS) if field.name in names]
    given = [
        {**each, "properties": list(each["properties"].items()) if each["properties"] else None}
        for each in rows
    ]
    return pa.Table.from_pylist(given, schema=pa.schema(fields))


def rewritten(found: pa.Table, **more: Any) -> list[dict[str, Any]]:
    return Rewriting("job", **more).rows("b", "orders", found).to_pylist()


def test_a_row_says_where_it_came_from() -> None:
    (one, two) = rewritten(table(row(1), row(2, properties=None)))
    assert dict(one["properties"]) == {
        "own": "x",
        "UNIQ_KEY": "id1",
        "ORIGIN_MSG_ID": "id1",
        "REPLAY_JOB": "job",
    }
    assert dict(two["properties"]) == {"ORIGIN_MSG_ID": "id2", "REPLAY_JOB": "job"}
    assert (one["topic"], one["body"], one["sharding_key"]) == ("orders", b"b1", "b-b-0")


def test_properties_of_a_slice_stay_with_their_rows() -> None:
    found = table(row(1, properties={"a": "1", "b": "2"}), row(2), row(3, properties={"c": "3"}))
    made = rewritten(found.slice(1))
    assert [dict(each["properties"]).get("c") for each in made] == [None, "3"]
    assert [dict(each["properties"])["ORIGIN_MSG_ID"] for each in made] == ["id2", "id3"]


def test_keys_follow_from_job_and_origin_alone() -> None:
    one, two = (each["msg_id"] for each in rewritten(table(row(1), row(2))))
    assert [each["msg_id"] for each in rewritten(table(row(2)))] == [two]
    others = [
        Rewriting("other").rows("b", "orders", table(row(1))),
        Rewriting("job").rows("c", "orders", table(row(1))),
        Rewriting("job").rows("b", "orders", table(row(1, queue_id=1))),
        Rewriting("job").rows("b", "orders", table(row(1, broker_name="other"))),
    ]
    keys = {one, two, *(each["msg_id"][0].as_py() for each in others)}
    assert len(keys) == 6
    assert all(len(key) == 32 and key == key.upper() for key in keys)


def test_rows_come_in_the_order_of_the_log() -> None:
    found = table(row(5, queue_id=1, phy_offset=50), row(0, phy_offset=10), row(1, phy_offset=90))
    assert [each["body"] for each in rewritten(found)] == [b"b0", b"b5", b"b1"]


def test_topics_are_mapped_and_queues_kept_if_asked() -> None:
    (one,) = rewritten(table(row(1, queue_id=3)), topics={"orders": "new"}, same_queue=True)
    assert (one["topic"], one["queue_id"]) == ("new", 3)
    assert "sharding_key" not in one
    assert Rewriting("j", {"*": "all", "a": "b"}).target("a") == "b"
    assert Rewriting("j", {"*": "all", "a": "b"}).target("z") == "all"
    assert Rewriting("j").target("z") == "z"


def test_bodies_that_were_archived_packed_are_unpacked() -> None:
    body = b"much " * 100
    packed, flag = compress_body(body), 0x301
    assert [b["body"] for b in rewritten(table(row(1, body=packed, sys_flag=flag), row(2)))] == [
        body,
        b"b2",
    ]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (Choice(), [0, 1, 2, 3]),
        (Choice(tags=frozenset(["new", "old"])), [1, 2]),
        (Choice(keys=frozenset(["k1"])), [1, 3]),
        (Choice(keys=frozenset(["k1", "k9"])), [1, 2, 3]),
        (Choice(keys=frozenset(["k"])), []),
        (Choice(since_ms=MS + 1), [1, 2, 3]),
        (Choice(until_ms=MS + 2), [0, 1]),
        (Choice(since_ms=MS + 2, until_ms=MS + 3), [2]),
    ],
)
def test_what_is_chosen(choice: Choice, chosen: list[int]) -> None:
    found = table(
        row(0),
        row(1, tags="new", keys="k1 k2"),
        row(2, tags="old", keys="k9"),
        row(3, keys="a k1"),
        row(4, sys_flag=4, keys="k1", tags="new"),
        row(5, sys_flag=12, keys="k1", tags="new"),
        row(6, body=b"", keys="k1", tags="new"),
    )
    assert choice.of(found)["queue_offset"].to_pylist() == chosen


class Waiter:
    """Lets the time pass that is waited for."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.advance(round(seconds * 1000))


def test_rows_go_at_the_rate() -> None:
    waiter = Waiter()
    pace = Pace(100, waiter.clock, waiter.wait)
    batch = pa.record_batch([list(range(95))], names=["n"])
    taken = []
    for part in pace.paced([batch, batch]):
        assert part.num_rows <= 10
        taken += part["n"].to_pylist()
    assert taken == [*range(95), *range(95)]
    assert waiter.clock.monotonic() == pytest.approx(1.9, abs=0.02)
    assert len(waiter.waits) == 20


def test_no_rate_is_no_wait() -> None:
    waiter = Waiter()
    batch = pa.record_batch([list(range(95))], names=["n"])
    assert list(Pace(0, waiter.clock, waiter.wait).paced([batch])) == [batch]
    assert waiter.waits == []


def test_who_is_slow_is_not_held_back_further() -> None:
    waiter = Waiter()
    batch = pa.record_batch([list(range(10))], names=["n"])
    for _ in Pace(100, waiter.clock, waiter.wait).paced([batch] * 3):
        waiter.clock.advance(1000)
    assert waiter.waits == []


def test_times_are_local_without_a_zone() -> None:
    assert instant_ms("since", "") is None
    assert instant_ms("since", "1700000000000") == MS
    assert instant_ms("since", "2023-11-14T22:13:20Z") == MS
    local = datetime.fromtimestamp(MS / 1000).isoformat()
    assert instant_ms("since", local) == MS
    assert instant_ms("since", "2023-11-14T23:13:20+01:00") == MS
    with pytest.raises(ConfigError, match="since=soon"):
        instant_ms("since", "soon")


@pytest.fixture
def archived(tmp_path: Path) -> str:
    store = opened(tmp_path / "store")
    for number in range(60):
        put(store, b"%d" % number, topic=("orders", "bills")[number % 2], queue_id=number % 3)
    put(store, topic="RMQ_SYS_TRANS_HALF_TOPIC", sys_flag=4)
    store.close()
    archive(None, ArchiveSettings(store=str(tmp_path / "store"), to=str(tmp_path / "archive")))
    return str(tmp_path / "archive")


def test_a_dry_run_counts_and_asks_no_broker(archived: str) -> None:
    settings = ReplaySettings(archive=archived, name_servers="127.0.0.1:1", topic_map=("bills=b",))
    result = replay(None, settings, dry_run=True)
    assert result.tables["topics"].to_pylist() == [
        {"topic": "b", "messages": 30},
        {"topic": "orders", "messages": 30},
    ]
    assert result.run.counts == {"archived": 60, "sent": 60, "resent": 0, "retries": 0}
    assert result.notes == ("would send 60 of 60 archived messages",)


class KilledError(BaseException):
    """Ends a run where it stands."""


def test_a_resumed_run_says_how_many_messages_may_be_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is killed in the second portion, and again in the third."""
    store = opened(tmp_path / "store")
    for number in range(200):
        put(store, b"%d" % number, topic="orders")
    store.close()
    to = str(tmp_path / "archive")
    archive(None, ArchiveSettings(store=str(tmp_path / "store"), to=to, range_bytes=4096))
    rows = [entry.rows for entry in Manifest(DiskFolder(Path(to))).entries()]
    assert len(rows) > 3
    killed_in = [1, 2]

    def send(job: Any, share: Share) -> Sending:
        if killed_in and share.number == killed_in[0]:
            del killed_in[0]
            raise KilledError
        return Sending(rows[share.number], rows[share.number], 0, ("orders", rows[share.number]))

    monkeypatch.setattr(replay_module, "send_share", send)
    settings = ReplaySettings(archive=to, name_servers="127.0.0.1:1", portion_rows=1)
    with pytest.raises(KilledError):
        replay(None, settings)
    assert not caplog.records
    with pytest.raises(KilledError):
        replay(None, replace(settings, resume="latest"))
    assert f"portion=1 rows={rows[1]}" in caplog.text
    result = replay(None, replace(settings, resume="latest"))
    assert f"portion=2 rows={rows[2]}" in caplog.text
    resent = rows[1] + rows[2]
    assert result.run.counts == {"archived": 200, "sent": 200, "resent": resent, "retries": 0}
    assert result.notes[1].startswith(f"up to {resent} of them are there twice")


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"name_servers": ""}, ConfigError, "expected archive and name_servers"),
        ({"topic_map": ("a",)}, ConfigError, "topic_map=a: expected old=new"),
        ({"options": ("a",)}, ConfigError, "options=a: expected name=value"),
        ({"topics": ("orders", "none")}, ConfigError, "has no topic none"),
        ({"archive": "/nowhere/at/all"}, PlaceError, "expected an archive"),
        ({"since": "soon"}, ConfigError, "since=soon"),
    ],
)
def test_mistakes_are_named(
    archived: str, more: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = {"archive": archived, "name_servers": "127.0.0.1:1", **more}
    with pytest.raises(error, match=text):
        replay(None, ReplaySettings(**given), dry_run=True)


def entry(number: int, rows: int, queues: int) -> Entry:
    """An entry whose rows are of two topics."""
    topics = ("orders", "bills", "rmq_sys_x")
    files = tuple(
        ArchiveFile(f"{topic}-{number}", topic, "2026-01-01", rows, 1, 0, 0, 0, 0)
        for topic in topics
    )
    numbers = tuple(
        QueueRows(topic, queue, 1, 0, 0, 0, 0) for topic in topics for queue in range(queues)
    )
    return Entry("b", number, number + 1, rows, files, numbers)


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 60), st.integers(1, 9))
def test_every_queue_of_a_portion_is_in_one_share(
    rows: list[int], portion_rows: int, cores: int
) -> None:
    """So that its order is kept; and every file is in a portion, in order."""
    entries = [entry(number, count, queues=5) for number, count in enumerate(rows)]
    divided = list(portions(entries, portion_rows))
    assert [each for portion in divided for each in portion] == entries
    for portion in divided[:-1]:
        *others, last = (each.rows for each in portion)
        assert sum(others) < portion_rows <= sum(others) + last
    for number, portion in enumerate(divided):
        found = list(shares(ReplaySettings(topics=("orders", "bills")), number, portion, cores))
        held = [(share.topic, queue) for share in found for queue in share.queues]
        assert sorted(held) == [(t, q) for t in ("bills", "orders") for q in range(5)]
        assert {share.files for share in found if share.topic == "orders"} == {
            tuple(f"orders-{each.start}" for each in portion)
        }


def test_tasks_that_run_at_once_share_the_rate() -> None:
    settings = ReplaySettings(rate=100.0)
    for cores in (1, 2, 8):
        found = list(shares(settings, 0, [entry(0, 1, queues=5)], cores))
        assert sum(share.rate for share in found[:cores]) == pytest.approx(100)
        assert {share.topic for share in found} == {"bills", "orders"}
