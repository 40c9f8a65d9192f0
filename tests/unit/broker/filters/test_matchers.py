"""Pulls with SQL92 expressions, from the bytes of a client through a real store."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from cometmq.broker.filters.subscriptions import Subscription
from cometmq.broker.filters.table import FilterTable
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.pulling.arrivals import Arrivals
from cometmq.broker.pulling.fast_path import PullFastPath
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.record import decode_messages
from cometmq.remoting.wire import FastPath
from cometmq.store import Matcher, MessageStore
from support.runner.tiers import rounds
from support.stores.cold_files import ColdRead
from support.stores.small_stores import put
from support.wire import request_variants
from support.wire.fake_transport import Wired
from unit.broker.conftest import Pulls, Tables, open_store
from unit.broker.test_cold_reads import WAIT_S, HeldDisk, open_on

SUSPEND, SUBSCRIPTION = 2, 4
FIELDS = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "n > 2",
    "subVersion": "5", "expressionType": "SQL92",
}  # fmt: skip
FROM_HEARTBEAT = {"sysFlag": "0", "subscription": ""}

java = partial(request_variants.java_header, code="11")


class Broker:
    """The part of a broker that pulls reach, with the topics T and %RETRY%g."""

    def __init__(self, tables: Tables, store: MessageStore, *, fast: bool) -> None:
        tables.settings = dataclasses.replace(tables.settings, enable_property_filter=True)
        self.tables = tables
        self.store = store
        for topic in ("T", "%RETRY%g"):
            tables.topic(topic)
        tables.group("g")
        self.pulls = Pulls(tables, store)
        self.held = self.pulls.held
        Arrivals(store, self.held, lambda _: None, lambda: None, lambda: None)
        fast_path: FastPath | None = PullFastPath(self.pulls.handler) if fast else None
        handler = with_prerequisites(self.pulls.handler.handle)
        self.wired = Wired({int(RequestCode.PULL_MESSAGE): handler}, fast_path=fast_path)
        self._asked = 0

    def put(self, *numbers: int, topic: str = "T", **properties: str) -> None:
        for number in numbers:
            put(self.store, b"%d" % number, topic, 0, {"n": str(number), **properties})

    def subscribe(self, expression: str, *, version: int = 5, kind: str = "SQL92") -> None:
        self.pulls.register(
            self.wired.connection,
            SubscriptionData(
                topic="T", sub_string=expression, expression_type=kind, sub_version=version
            ),
            SubscriptionData(topic="%RETRY%g", sub_string="*", sub_version=5),
        )

    def ask(self, offset: int = 0, **fields: str) -> None:
        self._asked += 1
        fields = FIELDS | {"queueOffset": str(offset)} | fields
        header = java(fields, opaque=str(self._asked))
        self.wired.transport.send((4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header)

    async def pull(self, offset: int = 0, **fields: str) -> Command:
        self.ask(offset, **fields)
        return (await self.wired.answered(self._asked))[-1]

    def close(self) -> None:
        self.pulls.reads.close()


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [message.body for message in decode_messages(answer.body)]


def following(answer: Command) -> tuple[int, int]:
    return answer.code, int(answer.fields["nextBeginOffset"])


@pytest.fixture(params=[False, True], ids=["general", "fast"])
async def broker(
    request: pytest.FixtureRequest, tables: Tables, store: MessageStore
) -> AsyncIterator[Broker]:
    made = Broker(tables, store, fast=request.param)
    yield made
    made.close()


async def test_the_expression_of_a_pull_decides(broker: Broker) -> None:
    broker.put(1, 2, 3, 4)
    found = await broker.pull()
    assert (bodies(found), following(found)) == ([b"3", b"4"], (0, 4))
    assert following(await broker.pull(subscription="n > 9")) == (20, 4)


async def test_messages_apart_are_sent_as_they_are_stored(broker: Broker) -> None:
    broker.put(*range(10))
    assert bodies(await broker.pull(subscription="n IN ('1', '2', '5')")) == [b"1", b"2", b"5"]
    assert bodies(await broker.pull(subscription="n <> '0'", maxMsgNums="2")) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"subscription": "n >"}, 23, "SQL92 at character 4: met "),
        ({"subscription": ""}, 23, "SQL92 at character 1: met "),
        ({"expressionType": "LUA"}, 23, "met the expression type 'LUA'"),
        ({"subscription": "(" * 2_000}, 23, "SQL92 at character "),
    ],
)
async def test_an_expression_that_is_not_understood_is_refused(
    broker: Broker, fields: dict[str, str], code: int, remark: str
) -> None:
    broker.put(1)
    answer = await broker.pull(**fields)
    assert answer.code == code
    assert answer.remark is not None
    assert answer.remark.startswith(remark)


async def test_a_long_expression_is_compiled_before_the_pull_runs(broker: Broker) -> None:
    broker.put(1, 2, 3)
    text = " OR ".join(f"n = {number} OR long = 'x'" for number in range(2, 60))
    assert bodies(await broker.pull(subscription=text)) == [b"2", b"3"]


async def test_the_expression_of_the_heartbeat_decides_where_a_pull_brings_none(
    broker: Broker,
) -> None:
    broker.put(1, 2, 3, 4)
    broker.subscribe("n < 3")
    assert bodies(await broker.pull(**FROM_HEARTBEAT)) == [b"1", b"2"]
    broker.subscribe("n = 4", version=6)
    assert bodies(await broker.pull(**FROM_HEARTBEAT, subVersion="6")) == [b"4"]


async def test_a_heartbeat_that_is_not_understood_is_answered_by_the_pull(broker: Broker) -> None:
    broker.put(1)
    broker.subscribe("n <")
    answer = await broker.pull(**FROM_HEARTBEAT)
    assert answer.code == 27
    assert answer.remark is not None
    assert "Your expression may be wrong! SQL92 at character 4" in answer.remark


async def test_expressions_are_refused_where_they_are_switched_off(broker: Broker) -> None:
    tables = broker.tables
    tables.settings = dataclasses.replace(tables.settings, enable_property_filter=False)
    broker.put(1)
    broker.subscribe("n < 3")
    remark = (
        "The broker does not support consumer to filter message by SQL92;"
        " set enablePropertyFilter=true"
    )
    for answer in (await broker.pull(), await broker.pull(**FROM_HEARTBEAT)):
        assert (answer.code, answer.remark) == (1, remark)


@pytest.mark.parametrize("fields", [{}, FROM_HEARTBEAT], ids=["pull", "heartbeat"])
async def test_a_held_pull_is_answered_when_a_message_matches(
    broker: Broker, fields: dict[str, str]
) -> None:
    broker.subscribe("n > 2")
    flags = str(int(fields.get("sysFlag", "4")) | SUSPEND)
    broker.ask(**{**fields, "sysFlag": flags, "suspendTimeoutMillis": "60000"})
    broker.put(1, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert broker.wired.answers == []
    assert len(broker.held) == 1
    broker.put(3)
    (answer,) = await broker.wired.answered(1)
    assert (bodies(answer), following(answer)) == ([b"3"], (0, 3))


async def is_held(broker: Broker) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return len(broker.held) == 1


async def test_a_held_pull_is_answered_by_the_expression_that_its_group_has_by_then(
    broker: Broker,
) -> None:
    held = {**FROM_HEARTBEAT, "sysFlag": str(SUSPEND), "suspendTimeoutMillis": "60000"}
    broker.subscribe("n > 2")
    broker.ask(**held)
    broker.put(1, 2)
    assert await is_held(broker)
    broker.subscribe("n > 2", version=6)
    assert await is_held(broker)

    broker.subscribe("n < 2", version=7)
    (answer,) = await broker.wired.answered(1)
    assert (bodies(answer), following(answer)) == ([b"1"], (0, 2))

    broker.ask(2, **held)
    assert await is_held(broker)
    broker.subscribe("n < 3", version=8)
    answer = (await broker.wired.answered(2))[-1]
    assert following(answer) == (19, 2)
    broker.ask(2, **held)
    broker.put(2)
    answer = (await broker.wired.answered(3))[-1]
    assert bodies(answer) == [b"2"]


async def test_a_held_pull_keeps_the_expression_that_it_has_itself(broker: Broker) -> None:
    broker.subscribe("n > 2")
    broker.ask(sysFlag=str(SUSPEND | SUBSCRIPTION), suspendTimeoutMillis="60000")
    broker.put(1)
    broker.subscribe("n < 2", version=6)
    assert await is_held(broker)
    broker.put(3)
    (answer,) = await broker.wired.answered(1)
    assert bodies(answer) == [b"3"]


async def test_messages_sent_back_are_filtered_again_if_that_is_on(broker: Broker) -> None:
    retry = {"topic": "%RETRY%g", "subscription": "*", "expressionType": "TAG"}
    broker.put(1, 3, topic="%RETRY%g", RETRY_TOPIC="T")
    broker.put(0, topic="%RETRY%g", RETRY_TOPIC="U")
    broker.subscribe("n > 2")
    assert bodies(await broker.pull(**retry)) == [b"1", b"3", b"0"]
    tables = broker.tables
    tables.settings = dataclasses.replace(tables.settings, filter_support_retry=True)
    assert bodies(await broker.pull(**retry)) == [b"3", b"0"]
    assert bodies(await broker.pull(**retry, sysFlag="0")) == [b"3", b"0"]


async def test_messages_sent_back_are_not_filtered_by_the_expression_of_an_older_member(
    broker: Broker,
) -> None:
    """The members of a group change to tags one by one: the newest subscription counts for all."""
    broker.tables.settings = dataclasses.replace(broker.tables.settings, filter_support_retry=True)
    broker.put(1, topic="%RETRY%g", RETRY_TOPIC="T")
    broker.subscribe("n > 2")
    broker.subscribe("*", version=6, kind="TAG")
    broker.subscribe("n > 2")
    answer = await broker.pull(0, **FROM_HEARTBEAT, topic="%RETRY%g")
    assert bodies(answer) == [b"1"]


async def test_bit_maps_save_reads_and_change_no_result(tables: Tables, tmp_path: Path) -> None:
    tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
    store = open_store(
        tmp_path / "store", tables, consume_queue_ext_enabled=True, filters=tables.filters
    )
    broker = Broker(tables, store, fast=True)
    broker.subscribe("n > 2")
    tables.clock.advance(1)
    broker.put(1, 2, 3, 4)
    found = await broker.pull(**FROM_HEARTBEAT)
    assert (bodies(found), following(found)) == ([b"3", b"4"], (0, 4))
    bits = tables.filters.bloom.positions("g#T")
    set_bits = [
        [position for position in range(112) if unit.bitmap[position // 8] >> position % 8 & 1]
        for unit in store.ext_units("T", 0, 0, 4)
        if unit is not None
    ]
    assert set_bits == [[], [], sorted(bits), sorted(bits)]
    broker.close()
    store.close()


# --- messages on the disk only ------------------------------------------------------------------


@pytest.fixture
async def cold(tables: Tables, tmp_path: Path) -> AsyncIterator[tuple[Broker, HeldDisk]]:
    """A broker with six messages of an earlier life."""
    before = Broker(tables, open_store(tmp_path / "store", tables), fast=False)
    before.put(*range(6))
    before.close()
    before.store.close()
    disk = HeldDisk()
    made = Broker(tables, open_on(disk, tables, tmp_path / "store"), fast=True)
    yield made, disk
    disk.go.set()
    made.close()
    made.store.close()


async def test_messages_are_read_by_a_thread_before_they_are_evaluated(
    cold: tuple[Broker, HeldDisk],
) -> None:
    broker, disk = cold
    disk.go.clear()
    broker.ask(subscription="n = 4")
    assert await asyncio.to_thread(disk.is_read.wait, WAIT_S)
    assert broker.wired.answers == []
    disk.go.set()
    (answer,) = await broker.wired.answered(1)
    assert (bodies(answer), following(answer)) == ([b"4"], (0, 6))
    assert {read.path.parent.name for read in disk.reads} == {"0", "commitlog"}


async def test_a_pull_continues_at_the_message_that_is_not_in_memory(
    cold: tuple[Broker, HeldDisk],
) -> None:
    broker, disk = cold
    (first,) = broker.store.consume_queue_units("T", 0, 1, 1)
    disk.broken_from = first[0] + first[1]
    path = next((broker.store.settings.commit_log).iterdir())
    disk.reads.append(ColdRead(path, 0, first[0] + first[1], "before"))
    assert following(await broker.pull(subscription="n > 9")) == (20, 2)
    refused = await broker.pull(2, subscription="n > 9")
    assert (refused.code, refused.remark) == (
        1, "StoreError: cannot read from the disk: [Errno 5] a bad sector",
    )  # fmt: skip
    disk.broken_from = 1 << 62
    assert following(await broker.pull(2, subscription="n > 9")) == (20, 6)


async def test_extension_units_are_read_by_a_thread_too(tables: Tables, tmp_path: Path) -> None:
    tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
    with_units = {"consume_queue_ext_enabled": True}
    before = Broker(
        tables,
        open_store(tmp_path / "store", tables, filters=tables.filters, **with_units),
        fast=False,
    )
    before.subscribe("n > 3")
    tables.clock.advance(1)
    before.put(*range(6))
    before.close()
    before.store.close()
    disk = HeldDisk()
    broker = Broker(tables, open_on(disk, tables, tmp_path / "store", **with_units), fast=True)
    broker.subscribe("n > 3")
    assert following(await broker.pull(**FROM_HEARTBEAT)) == (20, 4)
    answer = await broker.pull(4, **FROM_HEARTBEAT)
    assert (bodies(answer), following(answer)) == ([b"4", b"5"], (0, 6))
    assert any("consumequeue_ext" in read.path.parts for read in disk.reads)
    (first,) = broker.store.consume_queue_units("T", 0, 4, 1)
    read = [each.start for each in disk.reads if each.path.parent.name == "commitlog"]
    assert min(read) == first[0]  # the bit maps have saved the reads before
    broker.close()
    broker.store.close()


async def test_messages_that_leave_the_memory_again_are_not_evaluated(
    cold: tuple[Broker, HeldDisk],
) -> None:
    broker, disk = cold
    disk.forgets = True
    assert following(await broker.pull(subscription="n > 9")) == (20, 0)


# --- random histories ---------------------------------------------------------------------------


class History:
    """Subscriptions, messages, clocks and restarts at random; pulls must find what matches.

    Args:
        tables, folder: of the broker.
        seed: replays a history.
    """

    EXPRESSIONS = ("n > 1", "n < 2", "n = 0", "n IN ('1', '3') OR other IS NULL")

    def __init__(self, tables: Tables, folder: Path, seed: int) -> None:
        tables.settings = dataclasses.replace(tables.settings, enable_calc_filter_bit_map=True)
        self.tables, self.folder = tables, folder
        self.dice = random.Random(seed)
        self.filters = tables.filters
        self.store = self._opened()
        self.numbers: list[int] = []
        self.latest_ms = 0
        self.version = 0

    def _opened(self) -> MessageStore:
        return open_store(
            self.folder, self.tables, consume_queue_ext_enabled=True, filters=self.filters
        )

    def step(self) -> None:
        """Do something; mostly a message arrives."""
        chances = {self.send: 10, self.subscribe: 3, self.end: 1, self.turn_clock: 1}
        chances |= {self.stop: 1, self.kill: 1, self.check: 3}
        (action,) = self.dice.choices(list(chances), list(chances.values()))
        action()

    def send(self) -> None:
        self.tables.clock.advance(self.dice.randrange(3))
        number = self.dice.randrange(4)
        put(self.store, b"x", "T", 0, {"n": str(number), "other": "x"})
        self.numbers.append(number)
        self.latest_ms = max(self.latest_ms, self.tables.clock.now_ms())

    def subscribe(self) -> None:
        self.version += 1
        data = SubscriptionData(
            topic="T",
            sub_string=self.dice.choice(self.EXPRESSIONS),
            expression_type="SQL92",
            sub_version=self.version,
        )
        self.filters.register(f"g{self.dice.randrange(3)}", [Subscription(data)])

    def end(self) -> None:
        self.filters.unregister(f"g{self.dice.randrange(3)}")

    def turn_clock(self) -> None:
        self.tables.clock.set_wall(self.tables.clock.now_ms() + self.dice.randrange(-50, 50))

    def stop(self) -> None:
        self.filters.persist_now()
        self.store.close()
        self._start_again()

    def kill(self) -> None:
        if self.dice.random() < 0.5:
            self.filters.persist_now()
        self.store.flush()
        self.store.abandon()
        (self.folder / "abort").write_bytes(b"1\n")
        self._start_again()

    def _start_again(self) -> None:
        """A start finds a clock that has caught up: it knows no earlier store times."""
        self.tables.clock.set_wall(max(self.tables.clock.now_ms(), self.latest_ms + 1))
        self.filters = FilterTable(
            lambda: self.tables.settings,
            self.tables.file("consumerFilter"),
            clock=self.tables.clock,
        )
        self.filters.load()
        self.store = self._opened()
        if not self.store.was_closed:
            self.filters.renew_births()

    def check(self) -> None:
        for group in ("g0", "g1", "g2"):
            data = self.filters.find("T", group)
            if data is None:
                continue
            subscription = SubscriptionData(
                topic="T",
                sub_string=data.text,
                expression_type="SQL92",
                sub_version=data.version,
            )
            matcher = self.filters.matcher(group, Subscription(subscription), True)
            wanted = [
                offset
                for offset, number in enumerate(self.numbers)
                if data.expression.evaluate({"n": str(number), "other": "x"})
            ]
            assert self._found(matcher) == wanted, (group, data.text)

    def _found(self, matcher: Matcher | None) -> list[int]:
        offset, found = 0, []
        while offset < len(self.numbers):
            result = self.store.get("T", 0, offset, 32, matcher)
            found += [m.queue_offset for part in result.slices for m in decode_messages(part)]
            assert result.next_begin_offset > offset
            offset = result.next_begin_offset
        return found


@pytest.mark.parametrize("seed", range(rounds(test=4, long=60)))
def test_bit_maps_lose_no_message_whatever_happens(
    tables: Tables, tmp_path: Path, seed: int
) -> None:
    """The parameter is the seed."""
    history = History(tables, tmp_path / "store", seed)
    for _ in range(120):
        history.step()
    history.check()
    history.store.close()
