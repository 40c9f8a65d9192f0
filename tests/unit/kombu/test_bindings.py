"""Which messages a binding takes, and which record of a binding counts."""

from __future__ import annotations

import json

import pytest

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
