"""Sends that share one write: same records and answers as one by one, and none if it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.processors.held_sends import HeldSends
from cometmq.protocol.batch import encode_batch
from cometmq.protocol.command import Command, encode_command
from support.stores import all_messages

from .conftest import Tables
from .test_plain_send import BATCH, FIELDS, ITEMS, Both, Side, frame, java, read


@pytest.fixture
def both(tmp_path: Path, tables: Tables) -> Both:
    made = Both(tmp_path, tables)
    made.short.fast_path = HeldSends(made.short.send, 16 * 1024)
    return made


STREAM = [
    frame(java(FIELDS, opaque="1")),
    frame(java(FIELDS | {"i": "DELAY\x011\x02"}, opaque="2")),
    frame(java(FIELDS | {"b": "unknown", "c": "none"}, opaque="3")),
    frame(java(BATCH, opaque="4", code="320"), encode_batch(ITEMS)),
    encode_command(Command(31999, opaque=5)),
    encode_command(Command(310, opaque=6, fields=FIELDS, body=b"x")),
    frame(java(FIELDS, opaque="7", flag="2")),
    frame(java(FIELDS | {"e": "99"}, opaque="8")),
    frame(java(FIELDS, opaque="9")),
]


@pytest.mark.parametrize("cut", [1, 9, 100, 1000, 10_000])
async def test_sends_are_stored_and_answered_as_one_by_one(both: Both, cut: int) -> None:
    stream = b"".join(STREAM)
    both.same(*(stream[at : at + cut] for at in range(0, len(stream), cut)))


async def test_sends_before_malformed_input_are_stored_and_answered(both: Both) -> None:
    both.same(STREAM[0] + STREAM[8] + b"\xff" * 12 + STREAM[0])
    assert len(all_messages(both.short.store, "T", 1)) == 2


async def test_sends_of_one_read_share_one_write(both: Both) -> None:
    for side, writes in ((both.short, 1), (both.long, 20)):
        client = side.connect()
        client.transport.send(STREAM[0])
        before = side.files.writes
        client.transport.send(STREAM[0] * 20)
        assert side.files.writes - before == writes
        assert len(client.answers) == 21


async def test_no_answer_leaves_when_the_write_fails(tmp_path: Path, tables: Tables) -> None:
    tables.topic("T", queues=4)
    side = Side(tmp_path, tables, short=False)
    side.fast_path = HeldSends(side.send)
    client = side.connect()
    client.transport.send(STREAM[0])
    side.files.fail_write = True
    client.transport.send(STREAM[0] * 3)
    side.files.fail_write = False
    assert client.connection.closed
    assert [answer[1] for answer in read(client)] == [0]
    again = side.connect()
    again.transport.send(STREAM[0])
    assert [answer[1] for answer in read(again)] == [14]


async def test_sends_are_refused_for_a_while_when_their_write_was_slow(
    tmp_path: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.topic("T", queues=4)
    side = Side(tmp_path, tables, short=False)
    side.fast_path = HeldSends(side.send)
    client = side.connect()
    now_s = iter(range(0, 1000, 2))
    monkeypatch.setattr("cometmq.broker.processors.held_sends.perf_counter", lambda: next(now_s))
    client.transport.send(STREAM[0])
    client.transport.send(STREAM[0])
    assert [answer[1] for answer in read(client)] == [0, 2]
