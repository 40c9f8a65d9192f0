"""nats-py with JetStream under load; see ours.py for arguments and output.

Runs in an environment of its own that has ``nats-py`` and ``uvloop``. The stream is named after the
topic, and has the subjects ``<topic>.*``.
"""

import asyncio
import json
import sys

import nats
import uvloop
from meter import Meter
from nats.errors import TimeoutError as NoMessagesError

BODY = b"x" * 128
BATCH_MAX = 32


async def send(stream, topic, meter, window):
    """Sends that are not awaited; nats-py itself waits while too many are in flight."""

    def done(future):
        meter.count += 1
        meter.errors += future.exception() is not None

    while not meter.over:
        (await stream.publish_async(f"{topic}.0", BODY)).add_done_callback(done)


async def awaited(stream, topic, meter, window):
    """Sends that are awaited by as many tasks as sends are in flight."""

    async def sends():
        while not meter.over:
            await stream.publish(f"{topic}.0", BODY)
            meter.count += 1

    await asyncio.gather(*(sends() for _ in range(window)))


async def handler(stream, topic, meter, window):
    """A backlog through a callback, which acknowledges each message when it returns."""

    async def handle(message):
        _check(message)
        meter.count += 1

    await stream.subscribe(f"{topic}.*", stream=topic, cb=handle)


async def consume(stream, topic, meter, window):
    """A backlog in batches: each message is acknowledged by itself, as a failed one would come
    again by itself."""
    consumer = await stream.pull_subscribe(f"{topic}.*", durable=None, stream=topic)
    while not meter.over:
        try:
            messages = await consumer.fetch(BATCH_MAX)
        except NoMessagesError:
            continue  # the meter notices the end of the backlog
        for message in messages:
            _check(message)
            await message.ack()
        meter.count += len(messages)


def _check(message):
    if len(message.data) != len(BODY):
        raise ValueError(f"a body of {len(message.data)} bytes, expected {len(BODY)}")


WORKS = {work.__name__: work for work in (send, awaited, handler, consume)}


async def run(address, work, topic, seconds, window, warm_s):
    meter = Meter(seconds, warm_s)
    connection = await nats.connect(f"nats://{address}")
    stream = connection.jetstream(publish_async_max_pending=window)
    if work in ("send", "awaited"):
        await stream.add_stream(name=topic, subjects=[f"{topic}.*"])
    async with asyncio.TaskGroup() as group:
        load = group.create_task(WORKS[work](stream, topic, meter, window))
        figures = await asyncio.to_thread(meter.run)
        await load
    await connection.close()
    return figures


def main():
    address, work, topic, seconds, window, _, warm_s = sys.argv[1:]
    load = run(address, work, topic, float(seconds), int(window), float(warm_s))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load)))


main()
