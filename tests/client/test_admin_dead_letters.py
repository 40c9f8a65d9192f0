"""Dead letters: counted, read in pages, found, and sent again exactly once."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cometmq.cli.commands import app
from cometmq.client import (
    AdminClient,
    ClientError,
    ConfigError,
    ConsumeLater,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
)
from cometmq.client._sending.sender import InnerProducer
from cometmq.client.admin import DeadLetter, ResendStatus, ResendTo, Resent
from cometmq.model import property_names as names
from cometmq.model.topic import Perm, dlq_topic, retry_topic
from support.checks.waiting import until
from support.clients.consumer_inputs import from_the_first
from support.clients.dead_letters import dead_letters, give_up
from support.clients.recording_handlers import Seen


async def stored(
    admin: AdminClient,
    group: str,
    topic: str,
    bodies: Iterable[bytes],
    **properties: str,
) -> list[DeadLetter]:
    """Store dead letters as a client does that gave up."""
    await admin.create_topic(dlq_topic(group), queues=1)
    await admin.create_topic(retry_topic(group), queues=1)
    await admin.create_group(group)
    await give_up(admin, group, topic, bodies, **properties)
    page = await admin.dead_letters(group, limit=1_000)
    return page.letters


async def messages(name_servers: str, topic: str, count: int) -> list[StoredMessage]:
    """All messages of a topic, once there are so many."""
    found: list[StoredMessage] = []
    async with PullConsumer(name_servers, group=f"g-{uuid.uuid4().hex}") as reader:
        positions = dict.fromkeys(await reader.fetch_queues(topic), 0)

        async def are_there() -> bool:
            for queue, offset in positions.items():
                result = await reader.pull(queue, offset)
                found.extend(result.messages)
                positions[queue] = max(result.next_offset, 0)
            return len(found) >= count

        await until(are_there, timeout=60)
    return found


def statuses(results: Iterable[Resent]) -> list[ResendStatus]:
    return [each.status for each in results]


# --- what a dead letter tells ---------------------------------------------------------------------


async def test_a_dead_letter_tells_its_topic_its_retries_and_its_error(
    admin: AdminClient, name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        raise ConsumeLater(delay_level=1) from LookupError(f"try {len(seen.messages)}")

    receipt = await producer.send(Message(topic=topic, body=b"x", tags="paid", keys=["k1", "k2"]))
    async with PushConsumer(
        name_servers, handler=handle, retries_max=1, **from_the_first(group, topic)
    ):
        await dead_letters(name_servers, group)
    [letter] = (await admin.dead_letters(group)).letters

    assert (letter.group, letter.original_topic, letter.retries) == (group, topic, 1)
    assert letter.message_id == letter.original_message_id == receipt.message_id
    assert letter.error == "builtins.LookupError: try 2"
    assert letter.error_time_ms is not None
    assert letter.born_time_ms <= letter.dead_time_ms
    assert (letter.message.tags, letter.message.keys) == ("paid", ["k1", "k2"])
    original = await admin.original_of(letter)
    assert original is not None
    assert original.offset_message_id == receipt.offset_message_id


@pytest.mark.parametrize("error", [None, RuntimeError("hopeless")])
async def test_a_message_that_is_dead_at_once_has_no_retries(
    admin: AdminClient,
    name_servers: str,
    producer: Producer,
    topic: str,
    group: str,
    error: RuntimeError | None,
) -> None:
    async def handle(message: StoredMessage) -> None:
        raise ConsumeLater(delay_level=-1) from error

    await producer.send(Message(topic=topic, body=b"x"))
    async with PushConsumer(name_servers, handler=handle, **from_the_first(group, topic)):
        await dead_letters(name_servers, group)
    [letter] = (await admin.dead_letters(group)).letters

    assert (letter.original_topic, letter.retries) == (topic, 0)
    assert letter.error == (None if error is None else "builtins.RuntimeError: hopeless")


async def test_a_dead_letter_is_the_same_after_its_way_through_json(
    admin: AdminClient, topic: str, group: str
) -> None:
    [letter] = await stored(admin, group, topic, [b"\x00\xff" * 3_000])

    again = DeadLetter.decode(json.loads(json.dumps(letter.encode())))

    assert again.encode() == letter.encode()
    assert again.message.body == letter.message.body
    assert again.resend_id(topic) == letter.resend_id(topic)


# --- reading --------------------------------------------------------------------------------------


async def test_pages_have_each_dead_letter_once_and_none_that_is_stored_later(
    admin: AdminClient, topic: str, group: str
) -> None:
    bodies = [str(number).encode() for number in range(75)]
    await stored(admin, group, topic, bodies)

    page = await admin.dead_letters(group, limit=40)
    await InnerProducer.of(admin._instance).send(Message(dlq_topic(group), b"later"), timeout=10)
    found, sizes = [], []
    while page.letters:
        found += [letter.message.body for letter in page.letters]
        sizes.append(len(page.letters))
        page = await admin.dead_letters(group, limit=40, ranges=page.rest)

    assert found == bodies
    assert sizes == [40, 35]


async def test_a_time_range_has_the_dead_letters_that_were_stored_in_it(
    admin: AdminClient, topic: str, group: str
) -> None:
    letters = await stored(admin, group, topic, [b"%d" % number for number in range(40)])
    times = [letter.dead_time_ms for letter in letters]

    for since, end in [(times[10], times[30]), (times[0], times[0]), (times[39], 2**63 - 1)]:
        page = await admin.dead_letters(group, since=since, until=end)
        expected = [each for each in letters if since <= each.dead_time_ms < end]
        assert [each.message.body for each in page.letters] == [
            each.message.body for each in expected
        ]
    assert not (await admin.dead_letters(group, since=times[39] + 60_000)).letters


async def test_counts_name_every_group_and_its_newest_dead_letter(
    admin: AdminClient, topic: str, group: str
) -> None:
    letters = await stored(admin, group, topic, [b"1", b"2", b"3"])

    [count] = [each for each in await admin.dead_letter_counts() if each.group == group]
    [missing] = await admin.dead_letter_counts([f"no-{group}"])

    assert (count.letters, count.last_time_ms) == (3, letters[-1].dead_time_ms)
    assert (count.unreadable, count.error) == ((), "")
    assert (missing.letters, "no broker" in missing.error) == (0, True)


async def test_dead_letters_are_found_by_their_ids_and_keys(
    admin: AdminClient, topic: str, group: str
) -> None:
    one, two = await stored(admin, group, topic, [b"1", b"2"])

    async def indexed() -> bool:
        return len(await admin.find_dead_letters(group, key="k1")) == 2

    await until(indexed, timeout=60)
    for message_id in (two.message_id, two.message.offset_message_id):
        [found] = await admin.find_dead_letters(group, message_id=message_id)
        assert found.message.body == b"2"
    assert await admin.find_dead_letters(group, message_id="no id") == []
    assert await admin.find_dead_letters(group, message_id="0" * 32) == []
    with pytest.raises(ConfigError, match="either message_id or key"):
        await admin.find_dead_letters(group, message_id=one.message_id, key="k1")


async def test_a_topic_without_read_permission_is_refused_with_what_helps(
    admin: AdminClient, topic: str, group: str
) -> None:
    await stored(admin, group, topic, [b"1"])
    await admin.create_topic(dlq_topic(group), queues=1, perm=Perm.WRITE)

    with pytest.raises(
        ClientError, match=r"no read permission there.*cometmq admin topic update .* --perm rw"
    ):
        await admin.dead_letters(group)
    [count] = await admin.dead_letter_counts([group])
    assert count.letters == 1
    assert count.unreadable


async def test_a_group_without_dead_letters_has_an_empty_page(
    admin: AdminClient, group: str
) -> None:
    page = await admin.dead_letters(group)
    assert (page.letters, page.rest, page.deleted) == ([], {}, 0)
    assert await admin.find_dead_letters(group, key="k") == []
    with pytest.raises(ConfigError, match="expected 1 to 1000"):
        await admin.dead_letters(group, limit=0)


# --- sending again --------------------------------------------------------------------------------


async def test_only_the_group_receives_what_is_sent_again_to_it_and_its_retries_begin_anew(
    admin: AdminClient, name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen, others, fails = Seen(), Seen(), True

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        if fails:
            raise ConsumeLater(delay_level=-1) from ValueError("down")

    receipt = await producer.send(
        Message(topic=topic, body=b"x", tags="paid", keys=["k1"], properties={"own": "1"}, flag=7)
    )
    async with (
        PushConsumer(name_servers, handler=handle, **from_the_first(group, topic, "paid")),
        PushConsumer(name_servers, handler=others, **from_the_first(f"{group}-other", topic)),
    ):
        await dead_letters(name_servers, group)
        [letter] = (await admin.dead_letters(group)).letters
        fails = False
        [result] = await admin.resend_dead_letters([letter])
        await seen.count(2)
        await others.count(1)

    assert result.status is ResendStatus.SENT
    assert result.topic == retry_topic(group)
    first, again = seen.messages
    assert (again.topic, again.body, again.tags, again.keys) == (topic, b"x", "paid", ["k1"])
    assert (again.flag, again.reconsume_times, again.properties["own"]) == (7, 0, "1")
    assert again.message_id == result.message_id != first.message_id
    assert again.properties["ORIGIN_MSG_ID"] == first.message_id == receipt.message_id
    broker = letter.queue.broker_name
    assert again.properties["DLQ_RESENT_FROM"] == f"{dlq_topic(group)}/{broker}/0/0"
    assert "DLQ_RESENT_TIME_MS" in again.properties
    assert "CONSUME_ERROR" not in again.properties
    assert others.bodies == [b"x"], "another group received it again"


async def test_every_group_receives_what_is_sent_again_to_the_topic(
    admin: AdminClient, name_servers: str, topic: str, group: str
) -> None:
    letters = await stored(admin, group, topic, [b"1", b"2"], CONSUME_ERROR="E: x", own="1")

    results = await admin.resend_dead_letters(letters, to=ResendTo.TOPIC)

    found = {message.message_id: message for message in await messages(name_servers, topic, 2)}
    assert statuses(results) == [ResendStatus.SENT] * 2
    assert [found[each.message_id or ""].body for each in results] == [b"1", b"2"]
    assert len(found) == 2
    for message in found.values():
        assert (message.tags, message.keys, message.properties["own"]) == ("red", ["k1"], "1")
        assert not {names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, "CONSUME_ERROR"} & {
            *message.properties
        }


@pytest.mark.parametrize("to", ResendTo)
async def test_a_dead_letter_is_not_sent_twice_unless_that_is_wanted(
    admin: AdminClient,
    name_servers: str,
    topic: str,
    group: str,
    to: ResendTo,
) -> None:
    letters = await stored(admin, group, topic, [b"1", b"2"])
    target = topic if to is ResendTo.TOPIC else retry_topic(group)

    [planned, _] = await admin.resend_dead_letters(letters, to=to, dry_run=True)
    [sent] = await admin.resend_dead_letters(letters[:1], to=to)

    async def indexed() -> bool:
        return bool(await admin.messages_by_key(target, sent.message_id or "", unique_id=True))

    await until(indexed, timeout=60)
    skipped, second = await admin.resend_dead_letters(letters, to=to)
    other = ResendTo.GROUP if to is ResendTo.TOPIC else ResendTo.TOPIC
    [elsewhere] = await admin.resend_dead_letters(letters[:1], to=other)
    [forced] = await admin.resend_dead_letters(letters[:1], to=to, again=True)

    assert statuses([planned, sent]) == [ResendStatus.PLANNED, ResendStatus.SENT]
    assert planned.message_id == sent.message_id
    assert statuses([skipped, second]) == [ResendStatus.SKIPPED, ResendStatus.SENT]
    assert skipped.offset_message_id == sent.offset_message_id
    assert skipped.reason == elsewhere.reason == f"sent again before, to {target}"
    assert forced.status is ResendStatus.SENT
    assert forced.message_id != sent.message_id
    bodies = sorted(message.body for message in await messages(name_servers, target, 3))
    assert bodies == [b"1", b"1", b"2"]


async def test_what_cannot_be_sent_fails_alone_with_its_reason(
    admin: AdminClient, name_servers: str, topic: str, group: str
) -> None:
    gone, homeless = f"gone-{group}", f"homeless-{group}"
    good = await stored(admin, group, topic, [b"1"])
    lost = await stored(admin, gone, f"no-{topic}", [b"2"])
    await admin.create_topic(dlq_topic(homeless), queues=1)
    await give_up(admin, homeless, None, [b"3"])
    [unknown] = (await admin.dead_letters(homeless)).letters

    results = await admin.resend_dead_letters([*lost, unknown, *good], to=ResendTo.TOPIC)

    assert statuses(results) == [ResendStatus.FAILED, ResendStatus.FAILED, ResendStatus.SENT]
    assert f"no broker serves topic no-{topic}" in results[0].reason
    assert results[1].reason == "its original topic is not recorded"
    assert unknown.original_topic is None
    assert [message.body for message in await messages(name_servers, topic, 1)] == [b"1"]
    assert f"no-{topic}" not in await admin.topics(), "the broker has created the topic"


async def test_a_body_too_large_for_the_broker_now_fails_with_the_reason_of_the_broker(
    admin: AdminClient, topic: str, group: str
) -> None:
    [letter] = await stored(admin, group, topic, [b"1"])
    row = letter.encode()
    large = DeadLetter.decode({**row, "properties": {**row["properties"], "own": "x" * 40_000}})

    [result] = await admin.resend_dead_letters([large])

    assert result.status is ResendStatus.FAILED
    assert "properties" in result.reason


async def test_a_group_that_does_not_read_its_retry_topic_is_refused(
    admin: AdminClient, name_servers: str, topic: str, group: str
) -> None:
    letters = await stored(admin, group, topic, [b"1"])
    async with PullConsumer(name_servers, group=group) as reader:
        await reader.subscribe(topic)

        async def online() -> bool:
            return bool((await admin.consumer_connections(group)).subscription_table)

        await until(online, timeout=60)
        with pytest.raises(ClientError, match="do not read %RETRY%"):
            await admin.resend_dead_letters(letters)
        [result] = await admin.resend_dead_letters(letters, to=ResendTo.TOPIC)
    assert result.status is ResendStatus.SENT


# --- the command ----------------------------------------------------------------------------------


async def test_the_command_lists_exports_and_sends_again(
    admin: AdminClient, name_servers: str, topic: str, group: str, tmp_path: Path
) -> None:
    await stored(admin, group, topic, [b"1", b"2"])
    file = str(tmp_path / "letters.jsonl")

    def run(*words: str) -> str:
        runner = CliRunner(env={"COMETMQ_CONFIG": None})
        line = ["admin", "dlq", *words, "--json", "--namesrv", name_servers]
        result = runner.invoke(app, line, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    rows = json.loads(await asyncio.to_thread(run, "list", group))
    exported = json.loads(await asyncio.to_thread(run, "export", group, file))
    sent = await asyncio.to_thread(run, "resend", group, "--file", file, "--yes")

    assert [row["original_topic"] for row in rows] == [topic] * 2
    assert exported["exported"] == 2
    assert [json.loads(line)["status"] for line in sent.splitlines()] == ["sent"] * 2
