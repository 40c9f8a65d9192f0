"""Commands that send messages, and measure how long that takes."""

from __future__ import annotations

import asyncio
import time

from cometmq.cli.messages import measured_sends, test_message
from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, CommandError
from cometmq.client import Message, Producer
from cometmq.client.library import route_from
from cometmq.model.errors import CometError
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms

INTERVAL_S = 10


def producer_of(call: Call, group: str, *, trace: bool = False) -> Producer:
    """Return a producer that uses the connections of the command."""
    return Producer(group=group, trace=trace, instance=call.instance)


async def send_message(call: Call) -> None:
    """Send one message."""
    topic, queue = call.text("t"), None
    if call.has("i") and not call.has("b"):
        print("Broker name must be set if the queue is chosen!")
        return
    if call.has("b"):
        queue = await call.existing_queue(topic, call.text("b"), call.number("i"))
    message = Message(
        topic, call.text("p").encode(), tags=call.text("c") or None, keys=call.text("k")
    )
    trace = call.true("m")
    async with producer_of(call, str(now_ms()), trace=trace) as producer:
        receipt = await producer.send(message, queue=queue)
    form = "%-32s  %-4s  %-20s    %s"
    print(form % ("#Broker Name", "#QID", "#Send Result", "#MsgId"))
    sent = receipt.queue
    print(form % (sent.broker_name, sent.queue_id, receipt.status.value, receipt.message_id))


async def send_msg_status(call: Call) -> None:
    """Send test messages to the topic with a broker's name."""
    topic, size = call.text("b"), call.number("s", 128)
    async with producer_of(call, "PID_SMSC") as producer:
        await producer.send(test_message(topic, 16))
        for _ in range(call.number("c", 50)):
            began = time.monotonic()
            receipt = await producer.send(test_message(topic, size))
            took_ms = round((time.monotonic() - began) * 1000)
            print(f"rt={took_ms}ms, SendResult={texts.receipt(receipt, is_4=call.is_4)}")


async def check_msg_send_rt(call: Call) -> None:
    """Send test messages to the queues of a topic in turn."""
    topic, amount = call.text("t"), call.number("a", 100)
    form = "%-32s  %-4s  %-20s    %s"
    print(form % ("#Broker Name", "#QID", "#Send Result", "#RT"))
    total = 0
    async with producer_of(call, str(now_ms())) as producer:
        queues = await _writable(call, topic)
        for number in range(amount):
            queue = queues[number % len(queues)]
            began, success = time.monotonic(), True
            try:
                await producer.send(test_message(topic, call.number("s", 128)), queue=queue)
            except CometError:
                success = False
            took_ms = round((time.monotonic() - began) * 1000)
            total += took_ms if number else 0  # the first one connects
            print(form % (queue.broker_name, queue.queue_id, texts.lower(success), took_ms))
    print(f"Avg RT: {total / max(amount - 1, 1):.2f}")


async def _writable(call: Call, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic that may be written to.

    Raises:
        CommandError: there is none.
    """
    queues = sorted(route_from(topic, await call.admin.route(topic)).publish_queues)
    if not queues:
        raise CommandError(f"no queue of topic {topic} may be written to")
    return queues


async def cluster_rt(call: Call) -> None:
    """Send test messages to every broker, again and again."""
    interval, log = call.number("i", INTERVAL_S), call.true("p")
    if not log:
        print(
            "%-24s  %-24s  %-4s  %-8s  %-8s"
            % ("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount")
        )
    async with producer_of(call, str(now_ms())) as producer:
        while True:
            await _round(call, producer, log)
            await asyncio.sleep(interval)


async def _round(call: Call, producer: Producer, log: bool) -> None:
    clusters = (await call.admin.cluster_info()).cluster_addr_table
    wanted = call.text("c")
    if wanted and wanted not in clusters:
        print(f"cluster [{wanted}] not exist", end="", flush=True)
        return
    for cluster in [wanted] if wanted else sorted(clusters):
        for broker in sorted(clusters[cluster]):
            count, size = call.number("a", 100), call.number("s", 128)
            rt, sent, failed = await measured_sends(producer, broker, count=count, size=size)
            if log:
                now = texts.to_seconds(now_ms())
                room = call.text("m", "noname")
                print(f"{now}|{room}|{cluster}|{broker}|{round(rt)}", flush=True)
            else:
                row = (cluster, broker, f"{rt:.2f}", sent, failed)
                print("%-24s  %-24s  %-8s  %-16s  %-16s" % row, flush=True)
