"""``cometmq admin message``: find messages, show them, send them again."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.admin.arguments import GroupName, OptionalTopic, TopicName, queue_of
from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.output import Change, Row, Rows
from cometmq.cli.lines import body_text
from cometmq.model.errors import ConfigError
from cometmq.model.nouns import counted
from cometmq.model.times import now_ms, time_of
from cometmq.protocol.lazy_record import body_or_stored

if TYPE_CHECKING:
    from cometmq.client import PullConsumer
    from cometmq.model.message import StoredMessage
    from cometmq.model.queue import MessageQueue
    from cometmq.protocol.bodies.broker_admin import ConsumeQueueData
    from cometmq.protocol.bodies.heartbeat import SubscriptionData

app = Commands("Messages: find them, show them, see who consumed them, send them again.")

MessageId = Annotated[
    str, typer.Argument(help="Unique id, or the broker's id of 32 hexadecimal digits.")
]
QueueName = Annotated[str, typer.Argument(help="Queue.", metavar="BROKER:NUMBER")]
OneQueue = Annotated[
    str | None,
    typer.Option("--queue", help="Only this queue.", metavar="BROKER:NUMBER", show_default="all"),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", help="Earliest store time: 2h for two hours ago, ISO 8601, or ms.",
        metavar="TIME", show_default="the oldest message",
    ),
]  # fmt: skip
Until = Annotated[
    str | None,
    typer.Option(
        "--until", help="Latest store time: 2h for two hours ago, ISO 8601, or ms.", metavar="TIME",
        show_default="the newest message",
    ),
]  # fmt: skip
Tags = Annotated[str, typer.Option("--tag", help="Tags to read: a || b; * for all.")]

ROW_KEYS = "message_id broker queue offset stored_time_ms tag keys body_bytes"
ALL_KEYS = (
    "topic message_id offset_message_id broker queue offset log_offset tag keys properties"
    " born_time_ms born_host stored_time_ms store_host retries flag sys_flag record_bytes"
    " body_bytes body body_base64"
)
UNIQUE_ID = re.compile(r"[0-9A-Fa-f]{32}")
COUNT = 128
COUNTED_MAX = 100_000
PULLED_MAX = 32
EVER = 2**63 - 1


def _row(message: StoredMessage) -> Row:
    return (
        *(message.message_id, message.broker_name, message.queue_id, int(message.queue_offset)),
        *(message.store_time_ms, message.tags, message.keys, len(body_or_stored(message))),
    )


def _whole(message: StoredMessage) -> Row:
    return (
        *(message.topic, message.message_id, message.offset_message_id, message.broker_name),
        *(message.queue_id, int(message.queue_offset), int(message.log_offset)),
        *(message.tags, message.keys, message.properties),
        *(message.born_time_ms, message.born_host, message.store_time_ms, message.store_host),
        *(message.reconsume_times, message.flag, message.sys_flag, message.size_bytes),
        *(len(body_or_stored(message)), body_text(message)),
        base64.b64encode(body_or_stored(message)).decode(),
    )


async def _by_id(call: Call, message_id: str, topic: str | None) -> StoredMessage:
    """Return a message by the broker's id, or in a topic by its unique id.

    Raises:
        ConfigError: there is no such message, or its topic is needed to find it.
    """
    from cometmq.client.admin.messages import is_offset_id

    if is_offset_id(message_id):
        return await call.admin.message_at(message_id)
    if topic is None:
        if UNIQUE_ID.fullmatch(message_id):
            raise ConfigError(f"{message_id} is a unique id: add --topic TOPIC")
        raise ConfigError(
            f"{message_id}: expected a broker's id, which has 32 hexadecimal digits, or a unique id"
            " with --topic TOPIC"
        )
    found = await call.admin.message_by_unique_id(topic, message_id)
    if found is None:
        raise ConfigError(f"no broker of {topic} has a message with the unique id {message_id}")
    return found


def _range(since: str | None, until: str | None) -> tuple[int, int]:
    now = now_ms()
    begin = 0 if since is None else time_of(since, now=now)
    end = EVER if until is None else time_of(until, now=now)
    if begin > end:
        raise ConfigError(f"--since {since} is after --until {until}")
    return begin, end


@app.show("show", ALL_KEYS, one=True)
async def show(call: Call, message_id: MessageId, topic: OptionalTopic = None) -> Row:
    """Show a message with its properties and its body."""
    return _whole(await _by_id(call, message_id, topic))


@app.show("find", f"{ROW_KEYS} offset_message_id")
async def find(
    call: Call,
    topic: TopicName,
    key: Annotated[str, typer.Argument(help="Key of the messages.")],
    since: Since = None,
    until: Until = None,
) -> Rows:
    """List the messages with a key, at most 64 of each broker."""
    begin, end = _range(since, until)
    return [
        (*_row(message), message.offset_message_id)
        for message in await call.admin.messages_by_key(topic, key, begin=begin, end=end)
    ]


@app.show("at", ALL_KEYS, one=True)
async def at(
    call: Call,
    topic: TopicName,
    queue: QueueName,
    offset: Annotated[int, typer.Argument(help="Offset in the queue.", min=0)],
) -> Row:
    """Show the message at an offset of a queue."""
    from cometmq.client import MessageQueue

    wanted = MessageQueue(topic, *queue_of(queue))
    found = await call.admin.message_in_queue(wanted, offset)
    if found is None:
        raise ConfigError(f"queue {queue} of {topic} has no message at offset {offset}")
    found.broker_name = wanted.broker_name
    return _whole(found)


@app.show("track", "group state committed error")
async def track(call: Call, message_id: MessageId, topic: OptionalTopic = None) -> Rows:
    """Show whether each group of the topic has consumed a message."""
    message = await _by_id(call, message_id, topic)
    return [
        (each.group, each.kind.value, each.committed, each.why)
        for each in await call.admin.track(message)
    ]


async def _queues(
    call: Call, consumer: PullConsumer, topic: str, queue: str | None
) -> list[MessageQueue]:
    queues = sorted(await consumer.fetch_queues(topic))
    if queue is None:
        return queues
    wanted = queue_of(queue)
    chosen = [each for each in queues if (each.broker_name, each.queue_id) == wanted]
    if not chosen:
        known = ", ".join(f"{each.broker_name}:{each.queue_id}" for each in queues)
        raise ConfigError(f"queue {queue}: {topic} has {known}")
    return chosen


async def _messages(
    call: Call, topic: str, queue: str | None, since: str | None, until: str | None, tags: str
) -> AsyncIterator[StoredMessage]:
    """Read the messages of queues, one queue after the other, and commit nothing."""
    from cometmq.client import PullConsumer
    from cometmq.client.admin.messages import TOOLS_GROUP
    from cometmq.client.settings import PullSettings

    begin, end = _range(since, until)
    starts = await call.admin.offsets_at(topic, begin) if since is not None else {}
    settings = PullSettings(auto_commit_ms=0)
    async with PullConsumer(
        group=TOOLS_GROUP, settings=settings, instance=call.instance
    ) as consumer:
        for each in await _queues(call, consumer, topic, queue):
            bounds = await consumer.bounds(each)
            offset, last = int(starts.get(each, bounds.min_offset)), int(bounds.max_offset)
            while offset < last:
                found = await consumer.pull(each, offset, filter=tags, max_messages=PULLED_MAX)
                for message in found.messages:
                    if message.store_time_ms > end:
                        last = 0
                        break
                    if message.queue_offset < last:
                        message.broker_name = each.broker_name
                        yield message
                if int(found.next_offset) <= offset:
                    break
                offset = int(found.next_offset)


@app.show("read", f"{ROW_KEYS} body")
async def read(
    call: Call,
    topic: TopicName,
    queue: OneQueue = None,
    since: Since = None,
    until: Until = None,
    tag: Tags = "*",
    count: Annotated[
        int, typer.Option("--count", min=1, max=COUNTED_MAX, help="Limit of messages.")
    ] = COUNT,
) -> Rows:
    """Read messages of a topic without committing offsets, queue by queue."""
    rows: list[Row] = []
    async for message in _messages(call, topic, queue, since, until, tag):
        rows.append((*_row(message), body_text(message)))
        if len(rows) == count:
            break
    return rows


@app.show("count", "tag messages body_bytes")
async def count_by_tag(
    call: Call,
    topic: TopicName,
    queue: OneQueue = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Messages to read; more is an error.")
    ] = COUNTED_MAX,
) -> Rows:
    """Count the messages of a topic by tag. It reads all of them."""
    counts, sizes = Counter[str](), Counter[str]()
    async for message in _messages(call, topic, queue, since, until, "*"):
        if counts.total() == limit:
            raise ConfigError(f"there are more than {limit} messages: narrow the time, or --limit")
        counts[message.tags or ""] += 1
        sizes[message.tags or ""] += len(body_or_stored(message))
    return [(tag or None, number, sizes[tag]) for tag, number in counts.most_common()]


@app.show("entries", "offset log_offset record_bytes tag_hash matches")
async def entries(
    call: Call,
    topic: TopicName,
    queue: QueueName,
    offset: Annotated[int, typer.Argument(help="Offset of the first entry.", min=0)],
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="Entries to show.")] = 10,
    group: Annotated[
        str, typer.Option("--group", help="Group whose subscription is evaluated for each entry.")
    ] = "",
) -> Rows:
    """Show entries of a consume queue, and whether a group's subscription matches them."""
    broker, number = queue_of(queue)
    server = (await call.registered(broker=broker))[0]
    found = await call.admin.queue_entries(
        server.address, topic, number, offset, count=count, group=group
    )
    if found is None:
        raise ConfigError(f"queue {queue} of {topic} has no entry {offset}")
    return [
        (
            *(index, each.physic_offset, each.physic_size, each.tags_code),
            _matches(found.subscription_data, each),
        )
        for index, each in enumerate(found.queue_data, offset)
    ]


def _matches(subscription: SubscriptionData | None, entry: ConsumeQueueData) -> bool | None:
    """Return whether an entry matches; None if that is not known, or nothing was to be evaluated.

    A broker evaluates only entries with a bit map, and shows false for others.
    """
    if subscription is None:
        return None
    if entry.extend_data_json:
        return entry.eval
    if subscription.class_filter_mode or subscription.expression_type not in ("", "TAG"):
        return None
    return subscription.sub_string in ("", "*") or entry.tags_code in subscription.code_set


@app.change("send-again")
async def send_again(
    call: Call, message_id: MessageId, topic: OptionalTopic = None
) -> list[Change]:
    """Send a stored message again to its topic; every group receives it, with the same id."""
    message = await _by_id(call, message_id, topic)
    run = partial(call.admin.send_again, message)
    return [
        Change(
            f"send message {message.message_id} again",
            message.topic,
            run,
            counted(len(message.body), "byte"),
            destroys=True,
        )
    ]


@app.change("deliver")
async def deliver(
    call: Call,
    message_id: MessageId,
    group: GroupName,
    client: Annotated[str, typer.Argument(help="Client id of the member.")],
    topic: OptionalTopic = None,
) -> list[Change]:
    """Pass a message to one member of a group now; offsets do not change."""
    message = await _by_id(call, message_id, topic)
    return [
        Change(
            f"pass message {message.message_id} to {client}",
            group,
            partial(_deliver, call, message, group, client),
            destroys=True,
        )
    ]


async def _deliver(call: Call, message: StoredMessage, group: str, client: str) -> None:
    result = await call.admin.consume_directly(group, client, message)
    value = result.consume_result
    if value is None or value.value != "CR_SUCCESS":
        from cometmq.client.errors import ClientError

        raise ClientError(f"{client} returned {value}: {result.remark or 'no reason'}")


@app.change("resume-check")
async def resume_check(
    call: Call,
    message_id: Annotated[
        str, typer.Argument(help="Broker's id of the message in TRANS_CHECK_MAX_TIME_TOPIC.")
    ],
) -> list[Change]:
    """Let a broker check a half message again that it has discarded."""
    run = partial(call.admin.resume_checks, message_id)
    return [Change(f"check half message {message_id} again", "its broker", run)]
