"""The console's pages of messages that were sent, delivered and redelivered."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cometmq.cli.admin.dead_letter_files import letters_in
from cometmq.client import (
    AdminClient,
    ConsumeLater,
    LocalState,
    Message,
    Producer,
    PushConsumer,
    StartFrom,
    StoredMessage,
    TransactionProducer,
)
from cometmq.console.app import Console, Options
from cometmq.console.dead_letters import resends
from cometmq.model.times import now_ms
from cometmq.testing import ThreadedCluster
from support.checks.waiting import until
from support.clients.console_visits import change, read, visitor

SETTINGS = {
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
    "messageDelayLevel": "1s 1h",
    "transactionTimeOut": "100",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "2",
}
LETTERS = 90
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def admin(cluster: ThreadedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_servers) as running:
        yield running


@pytest.fixture
async def producer(cluster: ThreadedCluster) -> AsyncIterator[Producer]:
    async with Producer(cluster.name_servers, group="shop", trace=True) as running:
        yield running


@pytest.fixture
async def visits(admin: AdminClient) -> AsyncIterator[httpx.AsyncClient]:
    async with visitor(Console(admin, Options())) as client:
        yield client


def consumer(cluster: ThreadedCluster, group: str, topic: str, handler: Any, **more: Any) -> Any:
    given = {"subscriptions": {topic: "*"}, "start_from": StartFrom.FIRST, "persist_ms": 100}
    return PushConsumer(cluster.name_servers, group=group, handler=handler, **(given | more))


async def row_of(visits: httpx.AsyncClient, topic: str, key: str) -> dict[str, Any]:
    """The place of the only message with a key, as soon as it is found."""

    async def found() -> bool:
        return bool((await read(visits, "/messages", topic=topic, key=key))["messages"])

    await until(found)
    [row] = (await read(visits, "/messages", topic=topic, key=key))["messages"]
    return {name: row[name] for name in ("topic", "broker", "queue", "offset")}


# --- messages -------------------------------------------------------------------------------------


async def test_messages_of_a_time_range_come_in_pages(
    visits: httpx.AsyncClient, admin: AdminClient, producer: Producer
) -> None:
    await admin.create_topic("by-time", queues=2)
    for number in range(60):
        await producer.send(Message("by-time", str(number).encode(), keys=[f"k{number}"]))
    first = await read(visits, "/messages/by-time", topic="by-time")
    second = await read(visits, "/messages/by-time", topic="by-time", rest=first["rest"])
    assert [len(each["messages"]) for each in (first, second)] == [50, 10]
    assert (first["rest_messages"], second["rest"]) == (10, "")
    keys = [each["keys"][0] for part in (first, second) for each in part["messages"]]
    assert set(keys) == {f"k{number}" for number in range(60)}

    [bound] = {each["stored_time_ms"] for each in first["messages"][30:31]}
    since = await read(visits, "/messages/by-time", topic="by-time", since=bound)
    assert all(each["stored_time_ms"] >= bound for each in since["messages"])
    until_ = await read(visits, "/messages/by-time", topic="by-time", until=bound)
    assert all(each["stored_time_ms"] < bound for each in until_["messages"])
    assert len(since["messages"]) + len(until_["messages"]) == 60
    of_queue = await read(visits, "/messages/by-time", topic="by-time", queue=1)
    assert {each["queue"] for each in of_queue["messages"]} == {1}
    for query in ({"since": "soon"}, {"since": "1m", "until": "1h"}, {"rest": "x"}):
        await read(visits, "/messages/by-time", 400, topic="by-time", **query)
    await read(visits, "/messages/by-time", 404, topic="by-time", queue=7)
    await read(visits, "/messages/by-time", 404, topic="missing")
    page = (await visits.get("/messages/by-time", params={"topic": "by-time"})).text
    assert "at most 10 left" in page


async def test_a_compressed_body_is_opened(
    visits: httpx.AsyncClient, admin: AdminClient, producer: Producer
) -> None:
    await admin.create_topic("compressed", queues=1)
    await producer.send(Message("compressed", b"[" + b"1," * 5000 + b"1]", keys=["packed"]))
    place = await row_of(visits, "compressed", "packed")
    shown = await read(visits, "/messages/message", **place)
    assert (shown["body"]["format"], shown["body"]["bytes"]) == ("json", 10_003)
    assert (shown["compression"], shown["body_error"]) == ("zlib", "")
    assert shown["stored_body_bytes"] < 1000
    assert "by zlib" in (await visits.get("/messages/message", params=place)).text


async def test_each_group_of_a_message_has_its_state(
    cluster: ThreadedCluster, visits: httpx.AsyncClient, admin: AdminClient, producer: Producer
) -> None:
    await admin.create_topic("tracked", queues=1)
    await producer.send(Message("tracked", b"x", tags="red", keys=["one"]))
    place = await row_of(visits, "tracked", "one")
    failures = 0
    may_end = asyncio.Event()

    async def consume(message: StoredMessage) -> None:
        pass

    async def wait(message: StoredMessage) -> None:
        await may_end.wait()

    async def fail(message: StoredMessage) -> None:
        raise ValueError("cannot book")

    async def fail_once(message: StoredMessage) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise ConsumeLater(delay_level=1)

    async def later(message: StoredMessage) -> None:
        raise ConsumeLater(delay_level=2)

    async def states() -> dict[str, tuple[str, int]]:
        found = await read(visits, "/messages/groups", **place)
        return {each["group"]: (each["state"], each["retries"]) for each in found["groups"]}

    async def are(wanted: dict[str, tuple[str, int]]) -> bool:
        return wanted.items() <= (await states()).items()

    async with (
        consumer(cluster, "done", "tracked", consume),
        consumer(cluster, "others", "tracked", consume, subscriptions={"tracked": "blue"}),
        consumer(cluster, "dead", "tracked", fail, retries_max=0),
        consumer(cluster, "again", "tracked", fail_once),
        consumer(cluster, "later", "tracked", later),
        consumer(cluster, "busy", "tracked", wait),
    ):
        wanted = {
            "done": ("consumed", 0), "others": ("filtered", 0), "dead": ("dead-lettered", 0),
            "again": ("consumed", 1), "later": ("retry waits", 0),
        }  # fmt: skip
        await until(lambda: are(wanted), timeout=60)
        may_end.set()

        async def busy_is_done() -> bool:
            return (await states()).get("busy") == ("consumed", 0)

        await until(busy_is_done)
    found = await read(visits, "/messages/groups", **place)
    details = {each["group"]: each for each in found["groups"]}
    assert details["again"]["copies"][0]["topic"] == "%RETRY%again"
    assert details["dead"]["copies"][-1]["topic"] == "%DLQ%dead"
    assert details["done"]["committed"] == 1
    page = (await visits.get("/messages/groups", params=place)).text
    assert "dead letter</a>" in page
    assert 'href="/messages/deliver?' in page


async def test_a_trace_is_a_timeline_of_sends_consumptions_and_transactions(
    cluster: ThreadedCluster, visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    await admin.create_topic("traced", queues=1)
    handled = 0

    async def handle(message: StoredMessage) -> None:
        nonlocal handled
        handled += 1
        if handled == 1:
            raise ConsumeLater(delay_level=1)

    class Commits:
        async def execute(self, message: Message, argument: object) -> LocalState:
            return LocalState.COMMIT

        async def check(self, message: StoredMessage) -> LocalState:
            return LocalState.COMMIT

    async with (
        consumer(cluster, "traced-group", "traced", handle, trace=True),
        TransactionProducer(
            cluster.name_servers, group="bank", listener=Commits(), trace=True
        ) as bank,
    ):
        sent = await bank.send_in_transaction(Message("traced", b"x", keys=["t1"]))
        message_id = sent.receipt.message_id

        async def steps() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await read(visits, "/messages/trace", id=message_id))[
                "steps"
            ]
            return found

        async def is_complete() -> bool:
            return len(await steps()) == 4

        await until(is_complete, timeout=60)
    found = await steps()
    assert [(each["event"], each["result"]) for each in found] == [
        ("send", "stored"), ("transaction", "commit"), ("consume", "failed"),
        ("consume", "success"),
    ]  # fmt: skip
    assert [each["group"] for each in found] == ["bank", "bank", "traced-group", "traced-group"]
    assert [each["retry"] for each in found[2:]] == [0, 1]
    assert all(0 <= each["bar_from"] <= 100 - each["bar_width"] for each in found)
    page = (await visits.get("/messages/trace", params={"id": message_id})).text
    assert page.count("<rect ") == 4
    assert html.escape(f"/messages?topic=traced&id={message_id}") in page
    await read(visits, "/messages/trace", 404, id=message_id, trace_topic="no-traces")


async def test_a_message_is_delivered_to_a_member_and_sent_again(
    cluster: ThreadedCluster, visits: httpx.AsyncClient, admin: AdminClient, producer: Producer
) -> None:
    await admin.create_topic("again", queues=1)
    await producer.send(Message("again", b"x", keys=["order"]))
    place = await row_of(visits, "again", "order")
    received: list[str] = []

    async def handle(message: StoredMessage) -> None:
        received.append(message.message_id)
        if len(received) == 2:
            raise ValueError("not twice")

    await change(visits, "/messages/deliver", 400, group="clerks", **place)
    async with consumer(cluster, "clerks", "again", handle):
        await until(lambda: len(received) == 1)
        preview = await read(visits, "/messages/deliver", group="clerks", **place)
        assert preview["online_members"] == [preview["delivered_to"]]
        form = place | {"group": "clerks"}
        made = await change(visits, "/messages/deliver", **form)
        assert (made["result"], "not twice" in made["remark"]) == ("CR_THROW_EXCEPTION", True)
        made = await change(visits, "/messages/deliver", client=preview["delivered_to"], **form)
        assert made["result"] == "CR_SUCCESS"
        wrong = await change(visits, "/messages/deliver", 400, client="nobody", **form)
        assert "client=nobody is not online" in wrong["error"]

        preview = await read(visits, "/messages/resend", **place)
        assert preview["groups_that_receive_it_again"] == ["clerks"]
        made = await change(visits, "/messages/resend", **place)
        assert (made["topic"], made["offset"]) == ("again", 1)
        await until(lambda: len(received) == 4)
    assert len(set(received)) == 1
    await change(visits, "/messages/resend", 404, **(place | {"offset": 99}))
    half = place | {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}
    await change(visits, "/messages/resend", 400, **half)


# --- dead letters ---------------------------------------------------------------------------------


@pytest.fixture
async def dead_letters(cluster: ThreadedCluster, admin: AdminClient, producer: Producer) -> str:
    """A group with dead letters of two reasons; its name."""
    group = "ledger"
    if "bills" not in await admin.topics():
        await admin.create_topic("bills", queues=1)
        for number in range(LETTERS):
            await producer.send(Message("bills", str(number).encode(), keys=[f"b{number}"]))

        async def fail(message: StoredMessage) -> None:
            what = "no account" if int(message.body) % 3 else HOSTILE
            raise ValueError(f"{what}\nin line {message.body!r}")

        async with consumer(cluster, group, "bills", fail, retries_max=0):

            async def are_dead() -> bool:
                return (await admin.dead_letter_counts([group]))[0].letters == LETTERS

            await until(are_dead, timeout=60)
    return group


async def test_dead_letters_are_selected_and_counted_by_reason(
    visits: httpx.AsyncClient, dead_letters: str
) -> None:
    group = dead_letters
    found = await read(visits, "/dead-letters/reasons", group=group)
    assert (found["counted"], found["left"], found["reasons_total"]) == (LETTERS, 0, 2)
    assert [(each["reason"], each["letters"]) for each in found["reasons"]] == [
        ("builtins.ValueError: no account in line b'#'", 60),
        (f"builtins.ValueError: {HOSTILE.replace('1', '#')} in line b'#'", 30),
    ]  # fmt: skip
    chosen = await read(
        visits, "/dead-letters/group", group=group, reason="NO ACCOUNT in line b'#'"
    )
    assert len(chosen["letters"]) == 50
    assert all("no account" in each["reason"] for each in chosen["letters"])
    more = await read(
        visits,
        "/dead-letters/group",
        group=group,
        reason="NO ACCOUNT in line b'#'",
        rest=chosen["rest"],
    )
    keys = [each["keys"][0] for part in (chosen, more) for each in part["letters"]]
    assert sorted(keys) == sorted(f"b{number}" for number in range(LETTERS) if number % 3)
    assert more["rest"] == ""
    none = await read(visits, "/dead-letters/group", group=group, topic="other")
    assert (none["letters"], none["looked_at"], none["rest"]) == ([], LETTERS, "")
    page = (await visits.get("/dead-letters/reasons", params={"group": group})).text
    assert HOSTILE not in page


async def test_dead_letters_are_exported_for_the_command_that_sends_them_again(
    visits: httpx.AsyncClient, dead_letters: str, tmp_path: Path
) -> None:
    response = await visits.get("/dead-letters/export", params={"group": dead_letters})
    assert response.status_code == 200
    assert response.headers["content-disposition"] == (
        f'attachment; filename="dead-letters-{dead_letters}.jsonl"'
    )
    (tmp_path / "file").write_bytes(response.content)
    exported = list(letters_in(tmp_path / "file"))
    bodies = sorted(int(each.message.body) for each in exported)
    assert bodies == list(range(LETTERS))
    chosen = await visits.get(
        "/api/dead-letters/export", params={"group": dead_letters, "reason": "no account"}
    )
    assert len(chosen.content.splitlines()) == 60
    wrong = await visits.get(
        "/api/dead-letters/export", params={"group": dead_letters, "since": "x"}
    )
    assert (wrong.status_code, "since" in wrong.text or "x" in wrong.text) == (400, True)


async def test_dead_letters_are_sent_again_in_parts_with_a_report(
    visits: httpx.AsyncClient, admin: AdminClient, dead_letters: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    group = dead_letters
    letters = (await read(visits, "/dead-letters/group", group=group))["letters"]
    chosen = [
        next(each["position"] for each in letters if text in each["reason"])
        for text in ("no account", HOSTILE)
    ]
    pairs = [("group", group), *(("letters", each) for each in chosen)]
    place = {"topic": f"%DLQ%{group}"} | {
        name: letters[0][name] for name in ("broker", "queue", "offset")
    }
    page = html.unescape((await visits.get("/messages/message", params=place)).text)
    assert f"/messages?topic=bills&id={letters[0]['id']}" in page
    assert f"/dead-letters/resend?group={group}&letters=" in page
    assert "/messages/resend?" not in page
    form = (await visits.get("/dead-letters/resend", params=pairs)).text
    assert all(each in form for each in chosen)
    preview = (await visits.get("/api/dead-letters/resend", params=pairs)).json()
    assert preview["dead_letters_at_most"] == 2
    assert [each["status"] for each in preview["first_dead_letters"]] == ["planned", "planned"]
    made = await change(visits, "/dead-letters/resend", group=group, letters=chosen)
    assert (made["sent"], made["skipped"], made["failed"], made["rest"]) == (2, 0, 0, "")

    with monkeypatch.context() as slow:
        slow.setattr(resends, "SENT_S", 0.0)
        slow.setattr(resends, "PART", 1)
        made = await change(visits, "/dead-letters/resend", group=group, letters=chosen)
        assert (made["skipped"], made["left_at_most"], made["rest"]) == (1, 1, "")
        assert "not in the report" in made["stopped_by"]

    monkeypatch.setattr(resends, "SENT_MAX", 20)
    counts, rest, calls = {"sent": 0, "skipped": 0, "failed": 0}, "", 0
    while rest or not calls:
        made = await change(
            visits, "/dead-letters/resend", group=group, reason="no account", rest=rest
        )
        assert len(made["report"]) <= 20
        rest, calls = made["rest"], calls + 1
        for name in counts:
            counts[name] += made[name]
    assert (calls, counts) == (3, {"sent": 59, "skipped": 1, "failed": 0})
    stats = await admin.topic_stats(f"%RETRY%{group}")
    assert sum(each.max_offset - each.min_offset for each in stats.values()) == 61

    for wrong, status in (("x", 400), (f"{letters[0]['broker']}/0/99999", 404)):
        await change(visits, "/dead-letters/resend", status, group=group, letters=[wrong])
    sent = {"group": group, "to": "group", "reason": "no account"}
    page = (await visits.post("/dead-letters/resend", data=sent)).text
    assert "Nothing was done yet" in page
    [digest] = re.findall('name="previewed" value="(.*?)"', page)
    done = (await visits.post("/dead-letters/resend", data={**sent, "previewed": digest})).text
    assert "Go on with the rest" in done


async def test_who_may_change_nothing_sees_no_changes_but_may_export(
    admin: AdminClient, dead_letters: str
) -> None:
    async with visitor(Console(admin, Options(read_only=True))) as visits:
        found = await read(visits, "/dead-letters/group", group=dead_letters)
        page = (await visits.get("/dead-letters/group", params={"group": dead_letters})).text
        assert "/dead-letters/resend" not in page
        assert 'type="checkbox"' not in page
        assert "/dead-letters/export?" in page
        letter = found["letters"][0]
        place = {name: letter[name] for name in ("broker", "queue", "offset")}
        shown = await visits.get("/messages/message", params={"topic": found["topic"], **place})
        assert "/messages/groups?" in shown.text
        assert "/messages/deliver" not in shown.text
        body = await visits.get("/messages/body", params={"topic": found["topic"], **place})
        assert body.headers["content-type"] == "application/octet-stream"
        assert body.content.isdigit()
        refused = await visits.post("/api/dead-letters/resend", json={"group": dead_letters})
        assert refused.status_code == 404


# --- timers and delay levels ----------------------------------------------------------------------


async def test_timers_are_listed_found_and_recalled(
    visits: httpx.AsyncClient, admin: AdminClient, producer: Producer
) -> None:
    await admin.create_topic("alarms", queues=1)
    await admin.create_topic("letters", queues=1)
    receipts = [
        await producer.send(Message("alarms", b"x", keys=[f"a{number}"], delay=3600 + number))
        for number in range(60)
    ]
    noon = now_ms() // 1000 * 1000 + 7_200_000
    for _ in range(51):
        await producer.send(Message("letters", b"y", keys=["l"], deliver_at=noon))

    async def waiting(**query: Any) -> Any:
        [broker] = (await read(visits, "/timers"))["brokers"]
        return await read(visits, "/timers/broker", broker=broker["broker"], **query)

    async def are_there() -> bool:
        return len((await waiting(topic="alarms"))["timers"]) == 50

    await until(are_there)
    [broker] = (await read(visits, "/timers"))["brokers"]
    assert (broker["timers"], broker["topics"], broker["error"]) == (111, 2, "")
    first = await waiting()
    assert first["counts"] == [
        {"topic": "alarms", "waiting": 60}, {"topic": "letters", "waiting": 51},
    ]  # fmt: skip
    second = await waiting(after_ms=first["after_ms"])
    third = await waiting(after_ms=second["after_ms"])
    assert [len(each["timers"]) for each in (first, second, third)] == [50, 10, 50]
    assert (first["source"], third["after_ms"], third["left_out"]) == ("list", None, 1)
    keys = [each["keys"] for part in (first, second, third) for each in part["timers"]]
    assert keys == [*(f"a{number}" for number in range(60)), *50 * ["l"]]
    page = (await visits.get("/timers/broker", params={"broker": broker["broker"]})).text
    assert 'href="/timers/recall?topic=alarms&amp;handle=' in page

    for handle in (receipts[0].recall_handle, "a1", receipts[2].message_id):
        preview = await read(visits, "/timers/recall", topic="alarms", handle=handle)
        assert len(preview["timers"]) == 1
        made = await change(visits, "/timers/recall", topic="alarms", handle=handle)
        assert made["ids"] == [preview["timers"][0]["id"]]

    async def is_recalled() -> bool:
        [row] = (await read(visits, "/timers/find", topic="alarms", key="a1"))["timers"]
        return bool(row["state"] == "recalled")

    await until(is_recalled)
    wrong = await change(visits, "/timers/recall", 404, topic="alarms", handle="a1")
    assert "expected a recall handle" in wrong["error"]
    await read(visits, "/timers/broker", 404, broker="nobody")


async def test_messages_of_a_delay_level_are_shown_with_their_times(
    visits: httpx.AsyncClient, admin: AdminClient, producer: Producer
) -> None:
    await admin.create_topic("delayed", queues=1)
    for number in range(3):
        await producer.send(Message("delayed", b"x", keys=[f"d{number}"], delay_level=2))
    [broker] = (await read(visits, "/timers"))["brokers"]
    name = broker["broker"]

    async def level() -> Any:
        found = await read(visits, "/timers/broker", broker=name)
        return next(each for each in found["levels"] if each["level"] == 2)

    async def are_there() -> bool:
        return bool((await level())["waiting"] >= 3)

    await until(are_there)
    assert (await level())["delay_ms"] == 3_600_000
    found = await read(visits, "/timers/level", broker=name, level=2)
    delayed = [each for each in found["messages"] if each["topic"] == "delayed"]
    assert [each["row"]["keys"] for each in delayed] == [["d0"], ["d1"], ["d2"]]
    for each in delayed:
        assert each["due_time_ms"] == each["row"]["stored_time_ms"] + 3_600_000
    assert found["next_offset"] is None


# --- transactions ---------------------------------------------------------------------------------


async def test_half_messages_are_shown_until_they_are_decided_and_checked_again_when_given_up(
    cluster: ThreadedCluster, visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    await admin.create_topic("paid", queues=1)
    state = LocalState.UNKNOWN
    may_check = asyncio.Event()

    class Listener:
        async def execute(self, message: Message, argument: object) -> LocalState:
            return LocalState.UNKNOWN

        async def check(self, message: StoredMessage) -> LocalState:
            await may_check.wait()
            return state

    async def undecided() -> Any:
        return await read(visits, "/transactions", topic="paid")

    async with TransactionProducer(cluster.name_servers, group="bank", listener=Listener()) as bank:
        sent = await bank.send_in_transaction(Message("paid", b"42", keys=["p"]))

        async def is_waiting() -> bool:
            return bool((await undecided())["messages"])

        await until(is_waiting)
        found = await undecided()
        [message] = found["messages"]
        assert (message["id"], message["group"]) == (sent.receipt.message_id, "bank")
        [sender] = found["senders"]
        assert (sender["topic"], sender["undecided"]) == ("paid", 1)
        assert sender["age_ms"] >= 0
        assert found["brokers"][0]["is_exact"]

        async def is_given_up() -> bool:  # after two checks, to which the producer does not respond
            return bool((await read(visits, "/transactions/discarded"))["messages"])

        async def is_none_waiting() -> bool:
            return not (await undecided())["messages"]

        await until(is_given_up, timeout=60)
        await until(is_none_waiting)
        [given_up] = (await read(visits, "/transactions/discarded"))["messages"]
        assert (given_up["topic"], given_up["group"]) == ("paid", "bank")
        state = LocalState.COMMIT
        message_id = given_up["offset_message_id"]
        preview = await read(visits, "/transactions/resume", id=message_id)
        assert (preview["topic"], preview["producer_group"]) == ("paid", "bank")
        await change(visits, "/transactions/resume", id=message_id)
        may_check.set()

        async def is_delivered() -> bool:
            return bool((await read(visits, "/messages", topic="paid", key="p"))["messages"])

        await until(is_delivered, timeout=60)
        await until(is_none_waiting)
        refused = await change(visits, "/transactions/resume", 502, id=message_id)
        assert refused["error"]
    [row] = (await read(visits, "/messages", topic="paid", key="p"))["messages"]
    place = {name: row[name] for name in ("topic", "broker", "queue", "offset")}
    other = (await read(visits, "/messages/message", **place))["offset_message_id"]
    wrong = await change(visits, "/transactions/resume", 400, id=other)
    assert "is a message of paid" in wrong["error"]
    await change(visits, "/transactions/resume", 404, id="7F00000900002A9F0000000000000000")
