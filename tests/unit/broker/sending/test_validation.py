"""The target queue of a message, and the properties that the broker writes, check by check."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.broker.clients.queue_locks import QueueLocks
from cometmq.broker.prerequisites import after_prerequisites
from cometmq.broker.sending.send import Send, SendHeader
from cometmq.broker.sending.validation import SendRules
from cometmq.model.errors import ResponseError
from cometmq.model.flags import SysFlag
from cometmq.model.group import CustomizedRetryPolicy, GroupRetryPolicy
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import SEND_FORBIDDEN_TOPICS, TopicConfig
from cometmq.protocol.headers.send import SendMessageRequest, SendMessageV2Request
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.protocol.recall_handle import decode_handle
from support.runner.tiers import rounds
from support.wire.fake_transport import Wired
from support.wire.request_headers import send_header
from unit.broker.conftest import Tables

RULES = SendRules(
    broker_ip="10.0.0.1", cluster="c1", region="r1", trace_on=True, body_bytes_max=1000
)
STAMPS = {"CLUSTER": "c1", "MSG_REGION": "r1", "TRACE_ON": "true"}
FRESH = {"UNIQ_KEY": "FRESH"}
FORBIDDEN = "the broker[10.0.0.1] sending transaction message is forbidden"
RETRY, DEAD = "%RETRY%G", "%DLQ%G"
BEFORE_TELLING, TELLING = 120, 121
"""Versions of clients that do not, and do, tell how often to retry."""


def header(
    properties: dict[str, str] | str | None, *, topic: str = "T", queue_id: int = 0, **more: Any
) -> SendMessageV2Request:
    if isinstance(properties, dict):
        properties = encode_properties(properties).decode()
    fields = {"topic": topic, "queue_id": queue_id, "properties": properties}
    return send_header(producer_group="g", **fields | more)


def created(route: Callable[[], Send]) -> Send:
    """Place a message, and create what it needs, in a loop of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, after_prerequisites(route)).result()


class Door:
    """The validation of a broker with real tables, and one producer at it."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.locks = QueueLocks(tables.clock)
        self.chances: list[int] = []
        self.connection = Wired().connection
        self.connection.version = 479
        parts = {"holds_locks": self.locks.holds_any, "queue_chance": self._chance}
        self.validation = tables.validation(RULES, "1s 5s 10s", **parts)
        tables.topic("T", queues=4)

    def _chance(self, count: int) -> int:
        self.chances.append(count)
        return count - 1

    def rules(self, **changes: Any) -> None:
        self.validation.change(msgspec.structs.replace(RULES, **changes))

    def broker(self, **changes: Any) -> None:
        self.tables.settings = dataclasses.replace(self.tables.settings, **changes)

    def topic(self, name: str, **changes: Any) -> None:
        known = self.tables.topics.get(name) or TopicConfig(topic_name=name)
        self.tables.topics.put_now([msgspec.structs.replace(known, **changes)])

    def send(
        self, properties: dict[str, str] | str | None = None, *, body: bytes = b"b", **more: Any
    ) -> Send:
        """What a request asks for, not placed yet."""
        return self.asking(header(properties, **more), body)

    def asking(self, asked: SendHeader, body: bytes = b"b") -> Send:
        send = Send(self.connection)
        send.take_header(asked, body)
        return send

    def route(self, properties: dict[str, str] | str | None = None, **more: Any) -> Send:
        def placed() -> Send:
            send = self.send(properties, **more)
            self.validation.route(send)
            return send

        return created(placed)

    def route_batch(self, properties: dict[str, str] | str | None = None, **more: Any) -> Send:
        return self.route(properties, batch=True, **more)


def refusal(route: Callable[..., Send], *args: Any, **more: Any) -> tuple[int, str]:
    with pytest.raises(ResponseError) as refused:
        route(*args, **more)
    return refused.value.code, refused.value.remark


def stored(placement: Send) -> dict[str, str]:
    return decode_properties(placement.properties)


@pytest.fixture
async def door(tables: Tables) -> Door:
    return Door(tables)


# --- the fast path --------------------------------------------------------------------------------

ENTRIES = [
    *("UNIQ_KEY\x01u", "UNIQ_KEY\x01", "UNIQ_KEY", "XUNIQ_KEY\x01u", "KEYS\x01k", "KEYS\x01k l"),
    *("TAGS\x01t", "TAGS", "WAIT\x01true", "WAIT\x01false", "WAIT\x01", "AWAIT\x01false", ""),
    *("DELAY\x011", "DELAY\x010", "MYDELAY\x011", "CODE\x01x", "TRAN_MSG\x01true", "T\x01t"),
    *("TIMER_DELAY_SEC\x015", "CLUSTER\x01x", "MSG_REGION\x01x", "TRACE_ON\x01x", "POP_CK\x01x"),
    *("PGROUP\x01g", "é\x01ü", "a\x01b\x01c", "\x01UNIQ_KEY\x01u", "a\x03b"),
]


@settings(
    max_examples=rounds(test=200, long=3000),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    entries=st.lists(st.sampled_from(ENTRIES), max_size=5),
    is_closed=st.booleans(),
    batch=st.booleans(),
    queue_id=st.integers(-1, 6),
    sys_flag=st.sampled_from([0, 0, 0, 1, 4, 8, 12, 16, 32, 0x80, 0xC0]),
    topic=st.sampled_from(["T", "T", "T", "Many", RETRY, "SCHEDULE_TOPIC_XXXX"]),
    size=st.sampled_from([1, 1, 1, 0, 1000, 1001]),
    more=st.sampled_from([0, 0, 0, 32600, 32700, 32767]),
)
async def test_a_common_send_passes_all_checks_with_the_same_target_queue(
    door: Door, entries: list[str], is_closed: bool, size: int, more: int, **asked: Any
) -> None:
    door.topic("Many", topic_filter_type="MULTI_TAG")
    text = "\x02".join(entries) + "\x02" * is_closed
    if more:
        text += "x\x01" + "y" * max(0, more - len(text)) + "\x02"
    quick, checked = (door.send(text, body=bytes(size), **asked) for _ in range(2))
    door.validation.forget_topic()
    if not door.validation.route_common(quick):
        assert quick.topic == ""
        return
    door.validation.check_and_route(checked)
    fields = (
        "topic",
        "queue_id",
        "requested_queue_id",
        "sys_flag",
        "body_at",
        "body_end",
    )
    for field in fields:
        assert getattr(quick, field) == getattr(checked, field), field
    ids = [send.id_source[send.id_at : send.id_end] for send in (quick, checked)]
    assert ids[0] == ids[1]
    assert quick.properties == checked.properties


# --- a plain message ----------------------------------------------------------------------------


async def test_a_plain_message_goes_where_it_asks_to_with_the_brokers_stamps(door: Door) -> None:
    placement = door.route({"KEYS": "k", "UNIQ_KEY": "u"}, queue_id=3)

    assert (placement.topic, placement.queue_id, placement.requested_queue_id) == ("T", 3, 3)
    assert placement.sys_flag == 0
    assert placement.properties == (
        b"KEYS\x01k\x02UNIQ_KEY\x01u\x02CLUSTER\x01c1\x02MSG_REGION\x01r1\x02TRACE_ON\x01true\x02"
    )


async def test_both_forms_of_the_request_are_taken(door: Door) -> None:
    long = send_header(SendMessageRequest, topic="T", properties="KEYS\x01k\x02")
    placement = door.asking(long)
    door.validation.route(placement)

    assert stored(placement) == stored(door.route({"KEYS": "k"}))


@pytest.mark.parametrize("text", ["KEYS\x01k", "KEYS\x01k\x02", "KEYS\x01k\x02TAGS\x01t"])
async def test_the_last_separator_may_be_missing_as_4_x_clients_leave_it_out(
    door: Door, text: str
) -> None:
    for properties in (text, f"DELAY\x010\x02{text}"):
        found = stored(door.route(properties))
        expected = decode_properties(properties) | FRESH | STAMPS
        assert found == expected


@pytest.mark.parametrize("properties", [None, "", "\x02", "\x02\x02"])
async def test_a_message_without_properties_gets_the_brokers(
    door: Door, properties: str | None
) -> None:
    assert stored(door.route(properties)) == FRESH | STAMPS


async def test_changed_rules_hold_from_the_next_message_on(door: Door) -> None:
    door.rules(region="r2", trace_on=False, cluster="c2")

    found = stored(door.route({"UNIQ_KEY": "u"}))
    assert found == {"UNIQ_KEY": "u", "CLUSTER": "c2", "MSG_REGION": "r2", "TRACE_ON": "false"}


NAMES = st.sampled_from(
    [
        "KEYS", "TAGS", "WAIT", "UNIQ_KEY", "XUNIQ_KEY", "UNIQ_KEYS", "CLUSTER", "MYCLUSTER",
        "MSG_REGION", "TRACE_ON", "POP_CK", "POP_CK_OFFSET", "a", "", "名",
    ]
)  # fmt: skip
VALUES = st.sampled_from(["", "x", "true", "UNIQ_KEY", "r9", "DELAY", "值"])
ENTRIES = st.lists(st.tuples(NAMES, st.sampled_from(["\x01", "", "\x01\x01"]), VALUES), max_size=5)


@settings(
    max_examples=rounds(test=100, long=2000),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(entries=ENTRIES, ends=st.booleans(), watchful=st.booleans())
async def test_the_short_way_stores_what_the_careful_way_stores(
    door: Door, entries: list[tuple[str, str, str]], ends: bool, watchful: bool
) -> None:
    """Whatever the properties are: those sent, without the handle of a pop, then the broker's."""
    text = "\x02".join(map("".join, entries)) + ("\x02" if ends else "")
    expected = decode_properties(text)
    expected.pop("POP_CK", None)
    expected = FRESH | expected | STAMPS
    door.rules(accept_from_ms=1 if watchful else 0)

    placement = door.route(text, queue_id=2)

    assert stored(placement) == expected, repr(text)
    assert (placement.topic, placement.queue_id, placement.requested_queue_id) == ("T", 2, 2)


# --- the checks, in their order -----------------------------------------------------------------


async def test_of_several_reasons_the_first_in_rocketmqs_order_is_told(door: Door) -> None:
    """All of them hold at first; then one after the other is put right."""
    now_ms = door.tables.clock.now_ms()
    door.broker(auto_create_subscription_group=False)
    door.topic(RETRY, order=True, read_queue_nums=4, write_queue_nums=4)
    rules: dict[str, Any] = {"accept_from_ms": now_ms + 1, "broker_writable": False}
    rules["rejects_transactions"] = True
    asked: dict[str, Any] = {"topic": RETRY, "queue_id": 4, "body": b""}
    properties = {"TRAN_MSG": "true"}
    met: list[tuple[int, str]] = []

    def look() -> None:
        door.rules(**rules)
        met.append(refusal(door.route, dict(properties), **asked))

    look()
    del rules["accept_from_ms"]
    look()
    del rules["broker_writable"]
    look()
    asked["queue_id"] = 3
    look()
    door.broker(auto_create_subscription_group=True)
    look()
    properties.clear()
    look()
    asked["body"] = b"b"
    assert door.route(dict(properties), **asked).topic == RETRY

    assert [code for code, _ in met] == [1, 16, 29, 26, 16, 13]
    texts = [remark for _, remark in met]
    assert texts[0].startswith("broker unable to service, until ")
    assert texts[1] == "the broker[10.0.0.1] sending message is forbidden"
    assert texts[2].startswith("request queueId[4] is illegal, ")
    assert texts[2].endswith("Producer: 10.0.0.9:51000")
    assert texts[3].startswith("subscription group not exist, G")
    assert texts[4] == FORBIDDEN
    assert texts[5].startswith("the message is illegal, maybe msg body or properties length not")


async def test_before_its_time_the_broker_says_when_that_is(door: Door) -> None:
    door.rules(accept_from_ms=door.tables.clock.now_ms() + 2)
    code, remark = refusal(door.route)
    assert code == 1
    assert remark[-24:-14].count("-") == 2
    assert remark.endswith(",002")

    door.tables.clock.advance(2)
    assert door.route().topic == "T"


async def test_a_broker_that_is_not_writable_refuses_ordered_topics_alone(door: Door) -> None:
    door.rules(broker_writable=False)
    assert door.route().topic == "T"
    door.topic("T", order=True)
    assert refusal(door.route) == (16, "the broker[10.0.0.1] sending message is forbidden")


@pytest.mark.parametrize("perm", [0, 4])
async def test_a_topics_own_permission_is_for_clients_to_keep(door: Door, perm: int) -> None:
    door.topic("T", perm=perm)
    assert door.route().topic == "T"


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "The specified topic is blank."),
        (" ", "The specified topic is blank."),
        ("a b", "The specified topic contains illegal characters, allowing only"),
        ("../a", "The specified topic contains illegal characters, allowing only"),
        ("a\n", "The specified topic contains illegal characters, allowing only"),
        ("a\x00", "The specified topic contains illegal characters, allowing only"),
        ("主题", "The specified topic contains illegal characters, allowing only"),
        ("x" * 128, "The specified topic is longer than topic max length."),
    ],
)
async def test_a_topic_that_cannot_be_named_so_is_refused_before_anything_is_made(
    door: Door, topic: str, reason: str
) -> None:
    version = door.tables.topics.version
    code, remark = refusal(door.route, topic=topic, queue_id=99)
    assert code == 29
    assert remark.startswith(reason)
    assert door.tables.topics.version == version


@pytest.mark.parametrize("topic", sorted(SEND_FORBIDDEN_TOPICS))
async def test_some_system_topics_take_no_sends(door: Door, topic: str) -> None:
    expected = (16, f"Sending message to topic[{topic}] is forbidden.")
    assert refusal(door.route, topic=topic, queue_id=9999) == expected
    assert refusal(door.route_batch, topic=topic) == expected


async def test_an_unknown_topic_is_made_like_its_template(door: Door) -> None:
    placement = door.route(topic="new", queue_id=3)

    made = door.tables.topics.get("new")
    assert made is not None
    assert (made.write_queue_nums, made.read_queue_nums, made.perm) == (4, 4, 6)
    assert (placement.topic, placement.queue_id) == ("new", 3)


async def test_an_unknown_topic_is_refused_when_none_may_be_made(door: Door) -> None:
    code, remark = refusal(door.route, topic="new", default_topic="no-such-template")
    assert (code, remark[:44]) == (17, "topic[new] not exist, apply first please!"[:44])

    door.broker(auto_create_topic_enable=False)
    assert refusal(door.route, topic="new", queue_id=99)[0] == 17
    assert "new" not in door.tables.topics


async def test_a_retry_topic_is_made_even_where_no_other_may_be(door: Door) -> None:
    door.broker(auto_create_topic_enable=False)
    assert door.route(topic=RETRY).topic == RETRY

    made = door.tables.topics.get(RETRY)
    assert made is not None
    assert (made.write_queue_nums, made.read_queue_nums, made.perm) == (1, 1, 6)


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("%RETRY%G_T", "G"),
        ("%RETRY%G+T", "G"),
        ("%RETRY%new+T", "new"),
        ("%RETRY%new_T", "new_T"),
        ("%RETRY%G_unknown", "G_unknown"),
    ],
)
async def test_a_retry_of_a_popped_message_is_one_of_the_group_that_has_popped_it(
    door: Door, topic: str, group: str
) -> None:
    """The first form of the name may be that of another group, so both have to be known."""
    created(lambda: door.tables.groups.resolve("G"))
    before = {*door.tables.groups.all()}
    assert door.route(topic=topic, reconsume_times=1).topic == topic
    assert {*door.tables.groups.all()} - before == {group} - before
    assert topic in door.tables.topics


async def test_a_queue_beyond_the_last_is_refused_and_one_that_is_only_read_is_not(
    door: Door,
) -> None:
    door.topic("T", write_queue_nums=2, read_queue_nums=6)

    assert [door.route(queue_id=queue).queue_id for queue in (0, 1, 2, 5)] == [0, 1, 2, 5]
    assert refusal(door.route, queue_id=6)[0] == 29
    door.topic("T", write_queue_nums=6, read_queue_nums=2)
    assert door.route(queue_id=5).queue_id == 5


async def test_a_negative_queue_means_any_that_is_written(door: Door) -> None:
    door.topic("T", write_queue_nums=3, read_queue_nums=8)
    placement = door.route(queue_id=-1)

    assert door.chances == [3]
    assert (placement.queue_id, placement.requested_queue_id) == (2, 2)
    assert door.route_batch(queue_id=-7).queue_id == 2


async def test_a_topic_without_queues_takes_nothing(door: Door) -> None:
    """A message in a queue that is never read would be acknowledged and lost."""
    door.topic("T", write_queue_nums=0, read_queue_nums=0)
    for queue_id in (-1, 0, 1):
        assert refusal(door.route, queue_id=queue_id)[0] == 29
    assert door.chances == []


@pytest.mark.parametrize("said", ["true", "TRUE"])
async def test_a_half_message_waits_in_the_half_topic(door: Door, said: str) -> None:
    """Its flag loses the transaction bits, so the half queue gets a unit for it."""
    properties = {"TRAN_MSG": said, "PGROUP": "g", "DELAY": "2", "UNIQ_KEY": "u"}
    placement = door.route(properties, queue_id=3, sys_flag=int(SysFlag.TRANSACTION_PREPARED) | 1)

    assert (placement.topic, placement.queue_id) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert (placement.requested_queue_id, placement.sys_flag) == (3, 1)
    assert stored(placement) == properties | STAMPS | {
        "REAL_TOPIC": "T", "REAL_QID": "3", "__transactionId__": "u"
    }  # fmt: skip


async def test_a_half_message_without_an_id_gets_one(door: Door) -> None:
    met = stored(door.route({"TRAN_MSG": "true"}))
    assert (met["UNIQ_KEY"], met["__transactionId__"]) == ("FRESH", "FRESH")


async def test_a_half_message_cannot_claim_to_be_a_copy(door: Door) -> None:
    """A decision about the message that it claims to be would lose it."""
    claims = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "TRANSACTION_CHECK_TIMES": "15"}
    assert stored(door.route({"TRAN_MSG": "true"} | claims)).keys() & claims.keys() == set()


async def test_a_half_message_has_room_for_the_properties_of_its_copy(door: Door) -> None:
    """A check could not put it back otherwise."""
    half = {"TRAN_MSG": "true", "UNIQ_KEY": "u", "WAIT": "true", "a": ""}
    size = len(door.route(half | {"a": "x"}).properties)
    fits = door.route(half | {"a": "x" * (32767 - 48 - size + 1)}).properties
    assert len(fits) == 32767 - 48
    copy = decode_properties(fits) | {"TRANSACTION_CHECK_TIMES": "2147483647", "WAIT": "false"}
    assert len(encode_properties(copy)) <= 32767

    code, remark = refusal(door.route, half | {"a": "x" * (32767 - 48 - size + 2)})
    assert code == 13
    assert "48 bytes" in remark


async def test_a_broker_may_refuse_half_messages(door: Door) -> None:
    door.rules(rejects_transactions=True)
    assert refusal(door.route, {"TRAN_MSG": "true"}) == (16, FORBIDDEN)
    assert door.route({"TRAN_MSG": "false"}).topic == "T"


async def test_the_flag_of_a_half_message_alone_is_refused(door: Door) -> None:
    """RocketMQ stores such a message where no consumer and no check ever finds it."""
    for bits in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
        assert refusal(door.route, sys_flag=int(bits) | 1)[0] == 13
    assert door.route(sys_flag=int(SysFlag.TRANSACTION_COMMIT)).topic == "T"


async def test_a_delayed_retry_of_a_committed_message_is_no_half_message(door: Door) -> None:
    properties = {"TRAN_MSG": "true", "DELAY": "1"}
    placement = door.route(properties, topic=RETRY, reconsume_times=1)
    assert placement.topic == "SCHEDULE_TOPIC_XXXX"


def test_a_record_that_says_that_it_is_a_batch_is_refused(door: Door) -> None:
    """Only the broker makes such records."""
    for flag in (0x80, 0xC0):
        for route in (door.route, door.route_batch):
            code, remark = refusal(route, sys_flag=flag)
            assert (code, "queue.type=BatchCQ" in remark) == (13, True)
        for route in (door.route, door.route_batch):
            code, remark = refusal(route, {"INNER_NUM": "3"})
            assert (code, "INNER_NUM" in remark) == (13, True)
    assert door.route(sys_flag=0x40).topic == "T"


def test_a_batch_with_an_id_is_one_record_in_a_topic_that_holds_batches(door: Door) -> None:
    assert not door.route_batch({"UNIQ_KEY": "B"}).is_one_record
    door.topic("In", attributes={"queue.type": "BatchCQ"})
    placement = door.route_batch({"UNIQ_KEY": "B", "WAIT": "true"}, topic="In")
    assert placement.is_one_record
    assert not door.route_batch({"WAIT": "true"}, topic="In").is_one_record
    assert not door.route({"UNIQ_KEY": "A"}, topic="In").is_one_record


@pytest.mark.parametrize("more", [{"sys_flag": 4}, {"properties": {"TRAN_MSG": "true"}}])
async def test_a_batch_cannot_be_part_of_a_transaction(door: Door, more: dict[str, Any]) -> None:
    properties = more.pop("properties", None)
    assert refusal(door.route_batch, properties, **more)[0] == 13


async def test_a_timer_message_waits_and_can_be_recalled(door: Door) -> None:
    send = door.route({"TIMER_DELAY_SEC": "5", "UNIQ_KEY": "K"})
    assert (send.topic, send.queue_id) == ("rmq_sys_wheel_timer", 0)
    assert decode_handle(send.recall_handle.decode()).message_id == "K"
    assert refusal(door.route_batch, {"TIMER_DELAY_SEC": "5"}) == (13, "a batch cannot be delayed")
    assert door.route({"DELAY": "1", "TIMER_DELAY_SEC": "5"}).recall_handle == b""


@pytest.mark.parametrize("properties", [{}, {"DELAY": "1"}], ids=["plain", "delayed"])
@pytest.mark.parametrize(("size", "fits"), [(0, False), (1, True), (1000, True), (1001, False)])
async def test_a_body_is_neither_empty_nor_too_large(
    door: Door, properties: dict[str, str], size: int, fits: bool
) -> None:
    if fits:
        assert door.route(properties, body=bytes(size)).requested_queue_id == 0
        return
    code, remark = refusal(door.route, properties, body=bytes(size))
    assert code == 13
    assert "msg body length limit 1000B, msg properties length limit 32KB" in remark
    assert f"Met a body of {size}B" in remark
    assert refusal(door.route_batch, body=bytes(size))[0] == 13


@pytest.mark.parametrize("lead", ["", "DELAY\x010\x02"], ids=["plain", "careful"])
async def test_properties_are_measured_in_bytes_and_with_what_the_broker_adds(
    door: Door, lead: str
) -> None:
    added = len(door.route(f"UNIQ_KEY\x01u\x02{lead}a\x01b\x02").properties)
    room = (32767 - added + 1) // 2
    fits = f"UNIQ_KEY\x01u\x02{lead}a\x01{'é' * room}\x02"

    assert len(door.route(fits).properties) in (32766, 32767)
    code, remark = refusal(door.route, fits.replace("é", "éé", 1))
    assert code == 13
    assert "properties of 3276" in remark


# --- batches ------------------------------------------------------------------------------------


async def test_a_batch_keeps_its_properties_and_gains_the_brokers(door: Door) -> None:
    placement = door.route_batch({"UNIQ_KEY": "a,b", "WAIT": "true"}, queue_id=3)

    assert (placement.topic, placement.queue_id, placement.requested_queue_id) == ("T", 3, 3)
    assert stored(placement) == {"UNIQ_KEY": "a,b", "WAIT": "true"} | STAMPS


async def test_a_batch_is_refused_where_a_message_would_be_and_in_its_own_cases(
    door: Door,
) -> None:
    long = "%RETRY%" + "x" * 121
    door.topic(long)

    assert refusal(door.route_batch, topic=long) == (13, "message topic length too long 128")
    assert refusal(door.route_batch, topic=RETRY) == (
        13, f"batch request does not support retry group {RETRY}"
    )  # fmt: skip
    assert refusal(door.route_batch, {"DELAY": "2"})[0] == 13
    assert refusal(door.route_batch, queue_id=4)[0] == 29
    assert refusal(door.route_batch, topic="a b")[0] == 29
    assert door.route_batch({"DELAY": "0"}).topic == "T"


# --- delays -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "level"), [("1", 1), ("3", 3), ("4", 3), ("999999", 3)])
async def test_a_delayed_message_is_parked_with_its_real_place(
    door: Door, said: str, level: int
) -> None:
    placement = door.route({"KEYS": "k", "DELAY": said}, queue_id=2)

    assert (placement.topic, placement.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    assert placement.requested_queue_id == 2
    real = {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "2"}
    assert stored(placement) == {"KEYS": "k"} | real | FRESH | STAMPS


@pytest.mark.parametrize("said", ["0", "-1", "x", "1.5", "99999999999", ""])
async def test_what_is_no_level_delays_nothing(door: Door, said: str) -> None:
    placement = door.route(f"DELAY\x01{said}\x02")

    assert (placement.topic, placement.queue_id) == ("T", 0)
    assert "REAL_TOPIC" not in stored(placement)


async def test_a_producer_cannot_say_where_a_parked_message_goes(door: Door) -> None:
    placement = door.route({"DELAY": "1", "REAL_TOPIC": "other", "REAL_QID": "7"}, queue_id=1)

    found = stored(placement)
    assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("T", "1")


async def test_the_queue_chosen_for_a_parked_message_is_the_one_it_gets(door: Door) -> None:
    placement = door.route({"DELAY": "1"}, queue_id=-1)

    assert placement.requested_queue_id == 3
    assert stored(placement)["REAL_QID"] == "3"


# --- retries and dead letters -------------------------------------------------------------------


async def test_a_retry_goes_back_to_its_group_while_it_may(door: Door) -> None:
    for times in (None, 0, 16):
        placement = door.route({"KEYS": "k"}, topic=RETRY, reconsume_times=times)
        assert placement.topic == RETRY
        assert stored(placement) == {"KEYS": "k"} | FRESH | STAMPS


async def test_a_retry_with_a_delay_waits_for_its_group(door: Door) -> None:
    placement = door.route({"DELAY": "3"}, topic=RETRY, reconsume_times=2)

    assert (placement.topic, placement.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert stored(placement)["REAL_TOPIC"] == RETRY


async def test_a_retry_too_many_is_a_dead_letter_at_once(door: Door) -> None:
    placement = door.route({"KEYS": "k", "DELAY": "3"}, topic=RETRY, reconsume_times=17)

    assert (placement.topic, placement.queue_id, placement.requested_queue_id) == (DEAD, 0, 0)
    assert stored(placement) == {"KEYS": "k"} | FRESH | STAMPS
    made = door.tables.topics.get(DEAD)
    assert made is not None
    assert (made.write_queue_nums, made.perm) == (1, 6)


@pytest.mark.parametrize(
    ("version", "said", "times", "target"),
    [
        (TELLING, 3, 3, RETRY),
        (TELLING, 3, 4, DEAD),
        (TELLING, 0, 0, RETRY),
        (TELLING, 0, 1, DEAD),
        (TELLING, None, 4, RETRY),
        (TELLING, None, 17, DEAD),
        (TELLING, 100, 17, RETRY),
        (BEFORE_TELLING, 3, 4, RETRY),
        (BEFORE_TELLING, 100, 17, DEAD),
    ],
)
async def test_how_often_a_message_is_retried_its_client_may_say_if_young_enough(
    door: Door, version: int, said: int | None, times: int, target: str
) -> None:
    door.connection.version = version
    placement = door.route(topic=RETRY, max_reconsume_times=said, reconsume_times=times)
    assert placement.topic == target


async def test_a_group_that_consumes_in_order_gets_no_retries(door: Door) -> None:
    door.locks.lock("G", "client", [MessageQueue("T", "b", 0)])
    assert door.route(topic=RETRY).topic == DEAD
    door.tables.clock.advance(61_000)
    assert door.route(topic=RETRY).topic == RETRY


async def test_a_retry_of_a_group_that_may_not_be_made_is_refused(door: Door) -> None:
    door.broker(auto_create_subscription_group=False)
    assert refusal(door.route, topic=RETRY)[0] == 26


async def test_a_dead_letter_topic_can_be_sent_to_like_any_other(door: Door) -> None:
    door.topic(DEAD, write_queue_nums=1, read_queue_nums=1)
    placement = door.route({"DELAY": "1"}, topic=DEAD)
    assert placement.topic == "SCHEDULE_TOPIC_XXXX"


# --- topics with several tags -------------------------------------------------------------------


@pytest.mark.parametrize("properties", [{}, {"DELAY": "1"}, {"POP_CK": "x"}])
async def test_messages_of_a_multi_tag_topic_are_marked(
    door: Door, properties: dict[str, str]
) -> None:
    assert door.route(properties).sys_flag == 0
    door.topic("T", topic_filter_type="MULTI_TAG")

    assert door.route(properties).sys_flag == SysFlag.MULTI_TAGS
    if "DELAY" not in properties:
        assert door.route_batch(properties).sys_flag == SysFlag.MULTI_TAGS


async def test_a_topic_that_cannot_be_written_down_is_not_made(door: Door, tmp_path: Path) -> None:
    """The file of topics is where a directory is now."""
    file = tmp_path / "config" / "topics.json"
    file.unlink()
    file.with_name("topics.json.tmp").mkdir()
    with pytest.raises(Exception, match=r"topics\.json"):
        door.route(topic="new")
    assert "new" not in door.tables.topics


@pytest.mark.parametrize(
    ("times", "said", "waits"), [(1, "3", "1"), (2, "3", "1"), (1, "2", "2"), (0, "3", "3")]
)
async def test_a_retry_that_a_consumer_sends_waits_as_its_group_says(
    door: Door, times: int, said: str, waits: str
) -> None:
    """It names the level that a broker without policies would choose, at most the highest; the
    first number is one more than the retries so far."""
    policy = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[1000]))
    door.tables.group("G", group_retry_policy=policy)

    placement = door.route({"DELAY": said}, topic=RETRY, reconsume_times=times)

    assert stored(placement)["DELAY"] == waits
    assert placement.queue_id == int(waits) - 1
