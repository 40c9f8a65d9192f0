"""Commands that find messages, show one, and follow it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from cometmq.cli.exit_codes import print_error
from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, CommandError, parsed_time
from cometmq.cli.mqadmin.reads import decoded, pulled, reader
from cometmq.cli.mqadmin.topics import groups_of
from cometmq.client.admin import Track, TrackKind
from cometmq.client.admin.messages import is_offset_id, trace_events
from cometmq.client.trace.records import ConsumeAfter, Publish
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.topic import TRACE_TOPIC
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.query import QueryMessageRequest
from cometmq.protocol.lazy_record import body_or_stored
from cometmq.system.platforms import SYSTEM

BODIES = Path("/tmp/rocketmq/msgbodys")
"""The directory into which RocketMQ's tool writes the bodies of messages that it shows."""
FOUND_MAX = 64
ALL_SHOWN_MAX = 32
EVER = 2**63 - 1
NONE_FOUND = "query message by key finished, but no message."


async def find(
    call: Call,
    topic: str,
    key: str,
    *,
    unique: bool,
    near: str = "",
    begin: int = 0,
    end: int = EVER,
    limit: int = FOUND_MAX,
) -> list[StoredMessage]:
    """Return the messages with a key or with a unique id.

    Args:
        call: asks the servers.
        topic: the topic of the messages.
        key: the key or id.
        unique: whether the key is a unique id.
        near: a topic whose brokers are asked; ``topic`` if empty.
        begin, end: the range of the store time in ms.
        limit: of the messages of one broker.

    Raises:
        ResponseError: there is no such topic, or no such message.
    """
    header = QueryMessageRequest(
        topic=topic,
        key=key,
        max_num=limit,
        begin_timestamp=begin,
        end_timestamp=end,
        unique_key_query=unique or None,
    )
    found: list[StoredMessage] = []
    try:
        brokers = await call.brokers_of(near or topic)
    except ResponseError as error:
        remark = f"The topic[{topic}] not matched route info"
        raise ResponseError(error.code, remark) from error
    for name, broker in brokers.items():
        found += await call.admin.broker_messages(name, broker, header)
    if not found:
        raise ResponseError(ResponseCode.NO_MESSAGE, NONE_FOUND)
    return found


async def query_msg_by_id(call: Call) -> None:
    """Show messages by id, pass them to a consumer, or send them again."""
    for wanted in filter(None, (each.strip() for each in call.text("i").split(","))):
        message = await _by_id(call, wanted)
        if call.has("g") and call.has("d"):
            print(await _consume(call, message), end="")
        elif call.true("s"):
            print(f"prepare resend msg. originalMsgId={wanted}", end="")
            sent = await call.admin.send_again(message)
            print(texts.receipt(sent, is_4=call.is_4), end="")
        else:
            show(message, call.text("f"), offset_id=message.offset_message_id)
            await show_tracks(call, message, end="" if call.is_4 else "\n")


async def _by_id(call: Call, wanted: str) -> StoredMessage:
    """Return a message by the broker's id, in 5.3 also by its unique id."""
    topic = call.text("t")
    if call.is_4:
        if not is_offset_id(wanted):
            remark = "query message by id finished, but no message."
            raise ResponseError(ResponseCode.NO_MESSAGE, remark)
        return await call.admin.message_at(wanted)
    with suppress(CometError):
        return await call.admin.message_at(wanted)
    found = await find(call, topic, wanted, unique=True, near=call.text("c"))
    return min(found, key=lambda message: message.store_time_ms)


async def _consume(call: Call, message: StoredMessage) -> str:
    result = await call.admin.consume_directly(call.text("g"), call.text("d"), message)
    shown = {
        "order": result.order,
        "autoCommit": result.auto_commit,
        "consumeResult": result.consume_result,
        "remark": result.remark,
        "spentTimeMills": result.spent_time_mills,
    }
    return f"ConsumeMessageDirectlyResult [{texts.fields(shown)}]"


def show(message: StoredMessage, charset: str = "", *, offset_id: str = "") -> None:
    """Print a message, and write its body to a file."""
    rows = [
        ("Topic:", message.topic),
        ("Tags:", f"[{texts.java(message.tags)}]"),
        ("Keys:", f"[{texts.keys(message)}]"),
        ("Queue ID:", message.queue_id),
        ("Queue Offset:", message.queue_offset),
        ("CommitLog Offset:", message.log_offset),
        ("Reconsume Times:", message.reconsume_times),
        ("Born Timestamp:", texts.to_ms(message.born_time_ms)),
        ("Store Timestamp:", texts.to_ms(message.store_time_ms)),
        ("Born Host:", message.born_host),
        ("Store Host:", message.store_host),
        ("System Flag:", message.sys_flag),
        ("Properties:", texts.java(message.properties)),
        ("Message Body Path:", _write_body(message)),
    ]
    if offset_id:
        rows.insert(0, ("OffsetID:", offset_id))
    if charset:
        rows.append(("Message Body:", decoded(message, charset)))
    texts.columns("%-20s %s", rows)


def _write_body(message: StoredMessage) -> Path:
    path = BODIES / texts.file_name(message.message_id)
    try:
        BODIES.mkdir(parents=True, exist_ok=True)
        with os.fdopen(SYSTEM.open_private(path), "wb") as file:
            file.write(body_or_stored(message))
    except OSError as error:
        print_error(f"cannot write the body of {message.message_id}: {error}")
    return path


async def show_tracks(call: Call, message: StoredMessage, *, end: str = "") -> None:
    """Print whether each group of the topic has consumed a message.

    Args:
        call: asks the servers.
        message: the message.
        end: stands after each group.
    """
    groups = await groups_of(call, message.topic, await call.admin.route(message.topic))
    print("\n")
    tracks: list[Track] = []
    for group in groups:
        if group != message.topic:  # 5.3 names the topic itself if a group subscribes to it
            tracks += await call.admin.track(message, [group])
    for track in tracks:
        shown = {
            "consumerGroup": track.group,
            "trackType": track.kind.value,
            "exceptionDesc": _reason(track),
        }
        print(f"MessageTrack [{texts.fields(shown)}]", end=end)
    if not tracks:
        print("WARN: No Consumer")


def _reason(track: Track) -> str | None:
    if track.kind is TrackKind.NOT_ONLINE:
        code = int(ResponseCode.CONSUMER_NOT_ONLINE)
        return f"CODE:{code} DESC:the consumer group[{track.group}] not online"
    return track.why or None


async def query_msg_by_key(call: Call) -> None:
    """List the messages with a key."""
    found = await find(
        call,
        call.text("t"),
        call.text("k"),
        unique=False,
        near=call.text("c"),
        begin=call.number("b"),
        end=call.number("e", EVER),
        limit=call.number("m", FOUND_MAX),
    )
    print("%-50s %4s %40s" % ("#Message ID", "#QID", "#Offset"))
    for message in found:
        print("%-50s %4d %40d" % (message.message_id, message.queue_id, message.queue_offset))


async def query_msg_by_unique_key(call: Call) -> None:
    """Show a message by its unique id, or pass it to a consumer."""
    near = call.text("c")
    found = await find(
        call, call.text("t"), call.text("i"), unique=True, near=near, limit=ALL_SHOWN_MAX
    )
    ordered = sorted(found, key=lambda message: message.store_time_ms)
    if call.has("g") and call.has("d"):
        await _consume_unique(call, ordered[0])
        return
    for message in ordered if call.has("a") else ordered[:1]:
        show(message)
        await show_tracks(call, message)


async def _consume_unique(call: Call, message: StoredMessage) -> None:
    try:
        await call.admin.running_info(call.text("g"), call.text("d"))
    except ResponseError:
        if call.is_4:
            raise
        client = call.text("d")
        print(f"get consumer runtime info for {client} client failed ")
        print(
            f"get consumer info failed or this {client} client is not push consumer,"
            " not support direct push "
        )
        return
    print(await _consume(call, message), end="")


async def query_msg_by_offset(call: Call) -> None:
    """Show the message at an offset of a queue."""
    async with reader(call) as consumer:
        queue = await call.existing_queue(call.text("t"), call.text("b"), call.number("i"))
        offset = call.number("o")
        result = await pulled(consumer, queue, offset, count=1)
    for message in result.messages[:1]:
        show(message, call.text("f"), offset_id=message.offset_message_id)
        await show_tracks(call, message, end="" if call.is_4 else "\n")


PUB = ("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status")
SUB = ("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status")
TRACE_FORM = "%-10s %-20s %-20s %-20s %-10s %-10s"


async def query_msg_trace_by_id(call: Call) -> None:
    """Show who sent and who consumed a message."""
    wanted = call.text("i")
    begin = parsed_time(call.text("b", "0"), now=0)
    end = parsed_time(call.text("e", str(EVER)), now=EVER)
    found = await find(
        call,
        call.text("t", TRACE_TOPIC),
        wanted,
        unique=False,
        begin=begin,
        end=end,
        limit=call.number("c", FOUND_MAX),
    )
    published: list[tuple[object, ...]] = []
    consumed: dict[str, list[tuple[object, ...]]] = {}
    for event in trace_events(found, wanted):
        record = event.record
        if not isinstance(record, Publish | ConsumeAfter):
            continue
        when = texts.to_seconds(event.time_ms)
        status = "success" if record.success else "failed"
        row = (event.group, event.host, when, f"{record.cost_ms}ms", status)
        if isinstance(record, Publish):
            published.append(("Pub", *row))
        else:
            consumed.setdefault(event.group, []).append(("Sub", *row))
    if published:
        texts.columns(TRACE_FORM, [PUB, *published])
        print()
    for rows in consumed.values():
        texts.columns(TRACE_FORM, [SUB, *rows])
        print()


LINE = "=" * 38


async def query_cq(call: Call) -> None:
    """Print entries of a consume queue, and how a group's subscription matches them."""
    topic, broker = call.text("t"), call.text("b")
    if not broker:
        brokers = await call.brokers_of(topic)
        if not brokers:
            raise CommandError(f"no broker of topic {topic} is known")
        broker = next(iter(brokers.values()))
    found = await call.admin.queue_entries(
        broker,
        topic,
        call.number("q"),
        call.number("i"),
        count=call.number("c", 10),
        group=call.text("g"),
    )
    if found is None:
        raise CommandError(f"queue {call.text('q')} has no entry {call.text('i')}")
    if found.subscription_data is not None:
        subscription = texts.bean(found.subscription_data)
        for name in ("codeSet", "tagsSet"):
            subscription[name] = tuple(sorted(subscription.get(name, ())))
        print(f"Subscription data: \n{texts.pretty(subscription)}\n{LINE}")
    if call.has("g"):
        print(f"Filter data: \n{texts.java(found.filter_data)}\n{LINE}")
    print(f"Queue data: \nmax: {found.max_queue_index}, min: {found.min_queue_index}\n{LINE}")
    for index, unit in enumerate(found.queue_data, call.number("i")):
        quoted = {"extendDataJson": unit.extend_data_json, "bitMap": unit.bit_map}
        shown = {
            "physicOffset": unit.physic_offset,
            "physicSize": unit.physic_size,
            "tagsCode": unit.tags_code,
            **{name: f"'{texts.java(value)}'" for name, value in quoted.items()},
            "eval": unit.eval,
            "msg": f"'{texts.java(unit.msg)}'",
        }
        print(f"idx: {index}\nConsumeQueueData{{{texts.fields(shown)}}}\n{LINE}")
