"""Which messages a binding takes, and which record of a binding counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cometmq.kombu.bindings as module
from cometmq.kombu.bindings import Bindings, matches


@pytest.mark.parametrize(
    ("kind", "binding_key", "routing_key", "taken"),
    [
        ("direct", "a.b", "a.b", True),
        ("direct", "a.*", "a.b", False),
        ("fanout", "a", "b", True),
        ("topic", "a.*", "a.b", True),
        ("topic", "a.*", "a", False),
        ("topic", "a.*", "a.b.c", False),
        ("topic", "a.#", "a", True),
        ("topic", "a.#", "a.b.c", True),
        ("topic", "#", "", True),
        ("topic", "#.c", "a.b.c", True),
        ("topic", "#.c", "abc", False),
        ("topic", "a.#.#.c", "a.c", True),
        ("topic", "a+", "aa", False),
    ],
)
def test_a_binding_takes_what_amqp_says(
    kind: str, binding_key: str, routing_key: str, taken: bool
) -> None:
    assert matches(kind, binding_key, routing_key) is taken


async def test_the_newest_record_of_a_binding_counts_and_damage_is_skipped() -> None:
    written: list[bytes] = []

    async def write(body: bytes) -> None:
        written.append(body)

    here, there = Bindings(write), Bindings(write)
    await here.declare(("bind", "e", "q", "a.#"), "topic")
    await here.declare(("bind", "e", "q", "a.#"), "topic")
    assert len(written) == 1, "a young record is not written again"
    there.read([b"x", b"[]", b'{"key": 1}', *written])
    assert there.route("e", "a.b").queues == {"q"}
    assert not there.route("e", "b")
    await there.declare(("queue", "q"), 5)
    await there.forget_queue("q")
    here.read(reversed(written))
    assert not here.route("e", "a.b")
    assert here.priority_max("q") is None


async def test_a_record_is_written_again_when_it_is_old() -> None:
    written: list[bytes] = []

    async def write(body: bytes) -> None:
        written.append(body)

    bindings = Bindings(write)
    bindings.read([json.dumps({"at": 1, "key": ["queue", "q"], "value": 0}).encode()])
    await bindings.renew()
    assert not written, "this process has not declared it"
    await bindings.declare(("queue", "q"), 0)
    assert json.loads(written[0])["at"] > 1


@pytest.mark.parametrize(
    "record",
    [
        {"key": [], "at": 1, "value": 1},
        {"key": ["bind"], "at": 1, "value": "direct"},
        {"key": ["queue", []], "at": 1, "value": 1},
        {"key": "queue", "at": 1, "value": 1},
        {"key": ["queue", "q"], "at": 1, "value": "x"},
        {"key": ["queue", "q"], "at": 1, "value": 1_000_000},
        {"key": ["queue", "q"], "at": 1, "value": -1},
        {"key": ["queue", "q"], "at": 1, "value": True},
        {"key": ["queue", "q"], "at": 1e300, "value": 1},
        {"key": ["queue", "q"], "at": 10**30, "value": 1},
        {"key": ["queue", "q" * 1000], "at": 1, "value": 1},
        {"key": ["queue", "\ud800"], "at": 1, "value": 1},
        {"key": ["bind", "e", "q", "k"], "at": 1, "value": {}},
        {"key": ["bind", "e", "q", "k"], "at": 1, "value": "headers"},
        {"key": ["exchange", "e"], "at": 1, "value": "direct"},
        [[[]]],
    ],
)
async def test_a_record_of_another_form_changes_nothing(record: Any) -> None:
    bindings = Bindings(_write_nowhere)
    bindings.read([json.dumps(record).encode(), b"[" * 100_000, b"\xff"])
    assert bindings.priority_max("q") is None
    assert not bindings.route("e", "k")
    bindings.read([b'{"key": ["queue", "q"], "at": 1, "value": 1}'])
    assert bindings.priority_max("q") == 1


async def _write_nowhere(body: bytes) -> None:
    pass


async def test_a_record_of_a_clock_that_is_ahead_is_replaced_and_renewed() -> None:
    written: list[bytes] = []

    async def write(body: bytes) -> None:
        written.append(body)

    here = Bindings(write)
    ahead = {"key": ["bind", "e", "q", "k"], "at": 2**53, "value": "direct"}
    here.read([json.dumps(ahead).encode()])
    await here.declare(("bind", "e", "q", "k"), "direct")
    assert len(written) == 1, "brokers would remove the record, however young it seems"
    await here.declare(("bind", "e", "q", "k"), None)
    there = Bindings(write)
    there.read([json.dumps(ahead).encode(), *written])
    assert not there.route("e", "k")


async def test_a_queue_keeps_its_highest_priority_until_it_is_removed() -> None:
    written: list[bytes] = []

    async def write(body: bytes) -> None:
        written.append(body)

    here, there = Bindings(write), Bindings(write)
    await here.declare(("queue", "q"), 9)
    await there.declare(("queue", "q"), 0)
    for each in (here, there):
        each.read(written)
        assert each.priority_max("q") == 9, "its topics may have messages"
    await there.forget_queue("q")
    await there.declare(("queue", "q"), 0)
    here.read(written)
    assert here.priority_max("q") == 0


async def test_removed_records_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_MAX", 3)
    written: list[bytes] = []

    async def write(body: bytes) -> None:
        written.append(body)

    here, there = Bindings(write), Bindings(write)
    for number in range(10):
        await here.declare(("queue", f"q{number}"), 0)
        await here.forget_queue(f"q{number}")
    await here.declare(("bind", "e", "q", "k"), "direct")
    there.read(written)
    assert there.route("e", "k").queues == {"q"}
    for number in range(10):
        await here.declare(("queue", f"full{number}"), 0)
    there.read(written)
    assert there.priority_max("full1") == 0
    assert there.priority_max("full9") is None
    assert here.priority_max("full9") == 0, "what a process declares itself it knows"


async def test_bindings_that_a_restored_store_has_lost_are_written_again() -> None:
    written: list[bytes] = []

    async def write(body: bytes) -> None:
        written.append(body)

    here = Bindings(write)
    await here.declare(("bind", "e", "q", "k"), "direct")
    here.clear()
    assert not here.route("e", "k")
    await here.renew()
    assert here.route("e", "k").queues == {"q"}
    assert len(written) == 2
    await here.renew()
    assert len(written) == 2
    await here.renew(young_ms=0)  # a broker is away, and its records with it
    assert len(written) == 3


def test_a_binding_of_many_wildcards_is_compared_in_bounded_time() -> None:
    many, words = ".".join(["#", "a"] * 100), ".".join("a" * 250)
    assert not matches("topic", f"{many}.b", words)
    assert matches("topic", f"{many}.#", words)
