"""Commands that read queues and print messages, without committing offsets."""

from __future__ import annotations

import time
from collections import Counter

from cometmq.cli.lines import body_text
from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, CommandError, parsed_time
from cometmq.client import PullConsumer, PullResult, PullStatus
from cometmq.client.admin.messages import TOOLS_GROUP
from cometmq.client.settings import PullSettings
from cometmq.model.errors import CometError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue

PULLED_MAX = 32
MESSAGES = 128
"""How many messages `consume_message` reads, if no number is given."""


def reader(call: Call, group: str = TOOLS_GROUP) -> PullConsumer:
    """Return a consumer that reads and commits nothing."""
    settings = PullSettings(auto_commit_ms=0)
    return PullConsumer(group=group, settings=settings, instance=call.instance)


async def pulled(
    consumer: PullConsumer,
    queue: MessageQueue,
    offset: int,
    *,
    tags: str = "*",
    count: int = PULLED_MAX,
) -> PullResult:
    """Pull messages once; each has the bounds of its queue as properties, as in RocketMQ."""
    result = await consumer.pull(queue, offset, filter=tags, max_messages=count)
    for message in result.messages:
        message.properties |= {
            "MIN_OFFSET": str(result.min_offset),
            "MAX_OFFSET": str(result.max_offset),
        }
    return result


async def _range(
    call: Call, consumer: PullConsumer, queue: MessageQueue, begin: str, end: str
) -> tuple[int, int]:
    """Return the offsets between which a command reads a queue, as its flags say."""
    bounds = await consumer.bounds(queue)
    first, last = int(bounds.min_offset), int(bounds.max_offset)
    broker = (await call.brokers_of(queue.topic)).get(queue.broker_name, "")
    if call.has(begin):
        first = await call.admin.broker_offset_at(broker, queue, _time(call, begin))
    if call.has(end):
        last = await call.admin.broker_offset_at(broker, queue, _time(call, end))
    return first, last


def _time(call: Call, flag: str) -> int:
    text = call.text(flag)
    if text == "now":
        raise CommandError(f"-{flag} now: expected ms since 1970 or yyyy-MM-dd#HH:mm:ss:SSS")
    return parsed_time(text, now=0)


async def print_msg(call: Call) -> None:
    """Print the messages of all queues of a topic."""
    topic = call.text("t")
    async with reader(call) as consumer:
        for queue in await consumer.fetch_queues(topic):
            first, last = await _range(call, consumer, queue, "b", "e")
            print(f"minOffset={first}, maxOffset={last}, {texts.queue(queue)}")
            await _print_queue(call, consumer, queue, first, last)
            print("-" * 56)


async def _print_queue(
    call: Call, consumer: PullConsumer, queue: MessageQueue, first: int, last: int
) -> None:
    offset = first
    while offset < last:
        result = await pulled(consumer, queue, offset, tags=call.text("s", "*"))
        for message in result.messages:
            print_message(message, call.text("c", "UTF-8"), with_body=call.true("d", True))
        if result.status is not PullStatus.FOUND and _has_ended(queue, result):
            return
        offset = int(result.next_offset)


def _has_ended(queue: MessageQueue, result: PullResult) -> bool:
    """Print why a pull has no message; return whether the next one has none either."""
    goes_on = result.status is PullStatus.NO_MATCHED_MESSAGE
    shown = f"status={result.status.value}, offset={result.next_offset}"
    print(f"{texts.queue(queue)} {'no matched msg' if goes_on else 'print msg finished'}. {shown}")
    return not goes_on


def decoded(message: StoredMessage, charset: str) -> str:
    """Return a body as text.

    Raises:
        CommandError: there is no such character set.
    """
    try:
        return body_text(message, charset, "replace")
    except LookupError:
        raise CommandError(f"{charset}: expected the name of a character set") from None


def print_message(message: StoredMessage, charset: str, *, with_body: bool) -> None:
    """Print a message in one line."""
    body = decoded(message, charset) if with_body else "NOT PRINT BODY"
    print(f"MSGID: {message.message_id} {texts.message(message)} BODY: {body}")


async def print_msg_by_queue(call: Call) -> None:
    """Print or count the messages of one queue."""
    queue = await call.existing_queue(call.text("t"), call.text("a"), call.number("i"))
    counts: Counter[str] = Counter()
    async with reader(call) as consumer:
        first, last = await _range(call, consumer, queue, "b", "e")
        offset = first
        while offset < last:
            result = await pulled(consumer, queue, offset, tags=call.text("s", "*"))
            for message in result.messages:
                counts[message.tags or ""] += 1
                if call.true("p"):
                    charset = call.text("c", "UTF-8")
                    print_message(message, charset, with_body=call.true("d"))
            if result.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL):
                break
            offset = int(result.next_offset)
    if call.true("f"):
        for tag, count in counts.most_common():
            print("Tag: %-30s Count: %d" % (tag, count))


async def consume_message(call: Call) -> None:
    """Read messages and print them: of a topic, of a queue, from an offset, of a time."""
    count = call.number("c", MESSAGES)
    if call.has("c") and count <= 0:
        print("Please input a positive messageNumber!")
        return
    if call.has("i") and not call.has("b"):
        print("Please set the brokerName before queueId!")
        return
    if call.has("o") and not call.has("i"):
        print("Please set queueId before offset!")
        return
    if call.has("e") and _time(call, "e") > time.time() * 1000:
        print("Please set the endTimestamp before now!")
        return
    topic = call.text("t")
    async with reader(call, call.text("g") or TOOLS_GROUP) as consumer:
        if call.has("i"):
            queue = MessageQueue(topic, call.text("b"), call.number("i"))
            await _consume_one(call, consumer, queue, count)
        else:
            await _consume_all(call, consumer, topic, count)


async def _consume_one(call: Call, consumer: PullConsumer, queue: MessageQueue, count: int) -> None:
    first, last = await _range(call, consumer, queue, "s", "e")
    wanted = call.number("o")
    if wanted > last:
        print(f"{texts.queue(queue)} no matched msg, offset={wanted}")
        return
    first = max(first, wanted)
    if last - first > count:
        print(f"The oldler {count} message will be provided")
        last = first + count - 1
    await _consume(consumer, queue, first, last)


async def _consume_all(call: Call, consumer: PullConsumer, topic: str, count: int) -> None:
    left = count
    for queue in await consumer.fetch_queues(topic):
        if left <= 0:
            return
        try:
            first, last = await _range(call, consumer, queue, "s", "e")
            if last - first > left:
                print(f"The older {left} message of the {queue.queue_id} queue will be provided")
                last, left = first + left - 1, 0
            else:
                left -= last - first + 1
            await _consume(consumer, queue, first, last)
        except CometError as error:
            call.fail(error)


async def _consume(consumer: PullConsumer, queue: MessageQueue, first: int, last: int) -> None:
    offset = first
    while offset <= last:
        wanted = min(last - offset + 1, PULLED_MAX)
        result = await pulled(consumer, queue, offset, count=wanted)
        offset = int(result.next_offset)
        if result.status is PullStatus.FOUND:
            print("Consume ok")
            for message in result.messages:
                print_message(message, "UTF-8", with_body=True)
        elif _has_ended(queue, result):
            return
