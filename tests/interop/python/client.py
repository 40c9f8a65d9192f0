"""Our own client, driven line by line; see ../programs.py for the commands.

Each consumer has a client of its own, as if it ran elsewhere. Besides the common commands there is
``queues`` name, which answers the queues a consumer has now, and ``abort`` name, which ends one
without a farewell. Argument: the name server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from cometmq.client import (
    ClientClosedError,
    LocalState,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    PushConsumer,
    ReceiptExpiredError,
    SendReceipt,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
    TransactionProducer,
)
from cometmq.client.allocation import Averagely
from cometmq.client.settings import (
    ClientSettings,
    PopSettings,
    PushSettings,
    SimpleSettings,
)

ACCOUNT = {
    "access_key": os.environ.get("CLIENT_ACCESS_KEY", ""),
    "secret_key": os.environ.get("CLIENT_SECRET_KEY", ""),
}
QUICK: dict[str, Any] = {"heartbeat_ms": 1_000, "route_refresh_ms": 1_000, **ACCOUNT}
PUSH = PushSettings(
    concurrency=2,
    persist_ms=500,
    rebalance_ms=1_000,
    lock_ms=2_000,
    suspend_ms=500,
    retry_ms=500,
    stop_ms=3_000,
)
POP = PopSettings(
    concurrency=2, invisible_ms=10_000, assignment_ms=1_000, retry_ms=500, stop_ms=3_000
)
SIMPLE = SimpleSettings(invisible_ms=10_000, hold_ms=1_000, retry_ms=500)
Fields = dict[str, Any]


def emit(line: Fields) -> None:
    os.write(1, json.dumps(line, ensure_ascii=False).encode() + b"\n")


def built(topic: str, item: Fields) -> Message:
    return Message(
        topic=topic,
        body=item["body"].encode(),
        tags=item.get("tag"),
        keys=item.get("keys", "").split(),
        delay_level=item.get("delay", 0),
        properties=item.get("properties", {}),
    )


def result(receipt: SendReceipt) -> Fields:
    return {
        "status": receipt.status.name,
        "id": receipt.message_id,
        "offset_id": receipt.offset_message_id,
        "broker": receipt.queue.broker_name,
        "queue": receipt.queue.queue_id,
        "offset": receipt.queue_offset,
    }


def received(message: StoredMessage) -> Fields:
    return {
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tags,
        "keys": " ".join(message.keys) or None,
        "properties": message.properties,
        "id": message.message_id,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "reconsumed": message.reconsume_times,
        "born_ms": message.born_time_ms,
        "stored_ms": message.store_time_ms,
        "now_ms": int(time.time() * 1000),
    }


class Reporting:
    """Allocates as all members do, and reports each change of the member's own queues."""

    name = "AVG"

    def __init__(self, consumer: str, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._before: list[int] | None = None

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        mine = Averagely().allocate(group, client_id, queues, clients)
        if queues[0].topic == self._topic:
            numbers = [queue.queue_id for queue in mine]
            if numbers != self._before:
                self._before = numbers
                whose = {"event": "queues", "consumer": self._consumer}
                emit(whose | {"queues": numbers, "now_ms": int(time.time() * 1000)})
        return mine


class ByBody:
    """Decides as the bodies say; see ../programs.py."""

    states: ClassVar = {"commit": LocalState.COMMIT, "rollback": LocalState.ROLLBACK}

    def __init__(self) -> None:
        self._prepared: set[bytes] = set()
        self._checked: set[bytes] = set()

    async def execute(self, message: Message, argument: object) -> LocalState:
        self._prepared.add(message.body)
        return self.states.get(message.body.decode().split()[0], LocalState.UNKNOWN)

    async def check(self, message: StoredMessage) -> LocalState:
        body = message.body
        emit({"event": "check", "body": body.decode()})
        words = body.decode().split()
        is_first = body not in self._checked
        self._checked.add(body)
        if (words[0] == "twice" and is_first) or (words[0] == "other" and body in self._prepared):
            return LocalState.UNKNOWN
        return self.states[words[1]]


async def receive_all(
    consumer: SimpleConsumer, take: Callable[[StoredMessage], Awaitable[None]]
) -> None:
    """Receive, handle and settle messages until the consumer is closed."""
    with suppress(ClientClosedError):
        while True:
            for message in await consumer.receive(max_messages=4, wait=5.0):
                with suppress(ReceiptExpiredError):
                    try:
                        await take(message)
                    except ValueError:
                        await consumer.nack(message, delay=1.0)
                    else:
                        await consumer.ack(message)


class Program:
    """The producers and consumers that commands have started."""

    def __init__(self, name_servers: str) -> None:
        self._name_servers = name_servers
        self._producers: dict[str, Producer] = {}
        self._deciding: dict[str, TransactionProducer] = {}
        self._consumers: dict[str, PushConsumer | PopConsumer | SimpleConsumer] = {}
        self._loops: set[asyncio.Task[None]] = set()

    async def run(self, command: Fields) -> object:
        return await getattr(self, f"do_{command['do']}")(command)

    async def do_send(self, command: Fields) -> object:
        producer = await self._producer(command["group"], trace=command.get("trace", False))
        messages = [built(command["topic"], item) for item in command["messages"]]
        style = command["style"]
        if style == "batch":
            return [result(await producer.send_batch(messages))]
        if style == "async":
            sends = [producer.send_nowait(message) for message in messages]
            return [result(receipt) for receipt in await asyncio.gather(*sends)]
        if style == "oneway":
            return [await producer.send_oneway(message) for message in messages]
        keys = [item.get("shard", command.get("shard")) for item in command["messages"]]
        return [
            result(await producer.send(message, order_key=key if style == "ordered" else None))
            for message, key in zip(messages, keys, strict=True)
        ]

    async def _producer(self, group: str, *, trace: bool) -> Producer:
        if group not in self._producers:
            self._producers[group] = Producer(
                self._name_servers,
                group=group,
                timeout_ms=60_000,
                trace=trace,
                client=ClientSettings(**ACCOUNT),
            )
            await self._producers[group].start()
        return self._producers[group]

    async def do_transaction(self, command: Fields) -> object:
        group = command["group"]
        if group not in self._deciding:
            self._deciding[group] = TransactionProducer(
                self._name_servers, group=group, listener=ByBody(), client=ClientSettings(**QUICK)
            )
            await self._deciding[group].start()
        messages = [built(command["topic"], item) for item in command["messages"]]
        sent = [await self._deciding[group].send_in_transaction(each) for each in messages]
        return [result(one.receipt) for one in sent]

    async def do_consume(self, command: Fields) -> None:
        name, pace_s = command["name"], command.get("pace_ms", 0) / 1000

        async def take(message: StoredMessage) -> None:
            emit({"event": "message", "consumer": name, **received(message)})
            if pace_s:
                await asyncio.sleep(pace_s)
            again = message.body.startswith(b"retry") and message.reconsume_times == 0
            if again or message.body.startswith(b"dead"):
                raise ValueError("fails on purpose")

        common: Fields = {
            "group": command["group"],
            "subscriptions": {command["topic"]: command["expression"]},
            "start_from": StartFrom.FIRST,
            "client": ClientSettings(instance_name=name, **QUICK),
        }
        consumer: PushConsumer | PopConsumer | SimpleConsumer
        if command["mode"] == "pop":
            consumer = PopConsumer(self._name_servers, handler=take, settings=POP, **common)
        elif command["mode"] == "simple":
            consumer = SimpleConsumer(self._name_servers, settings=SIMPLE, **common)
        else:
            consumer = PushConsumer(
                self._name_servers,
                handler=take,
                ordered=command["mode"] == "orderly",
                broadcast=command["mode"] == "broadcast",
                strategy=Reporting(name, command["topic"]),
                settings=dataclasses.replace(
                    PUSH,
                    trace=command.get("trace", False),
                    retries_max=command.get("retries_max", PUSH.retries_max),
                ),
                **common,
            )
        await consumer.start()
        self._consumers[name] = consumer
        if isinstance(consumer, SimpleConsumer):
            loop = asyncio.create_task(receive_all(consumer, take))
            self._loops.add(loop)
            loop.add_done_callback(self._loops.discard)

    async def do_queues(self, command: Fields) -> list[str]:
        return [str(queue) for queue in self._consumers[command["name"]].queues()]

    async def do_stop(self, command: Fields) -> None:
        await self._consumers.pop(command["name"]).close()

    async def do_abort(self, command: Fields) -> None:
        await self._consumers.pop(command["name"]).abort()

    async def close(self) -> None:
        producers = *self._producers.values(), *self._deciding.values()
        for started in [*self._consumers.values(), *producers]:
            await started.close()


async def main() -> None:
    program = Program(sys.argv[1])
    lines = asyncio.StreamReader(limit=64 * 1024 * 1024)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    while line := await lines.readline():
        command = json.loads(line)
        if command["do"] == "quit":
            break
        answer: Fields = {"reply": command["id"]}
        try:
            answer["result"] = await program.run(command)
        except Exception as error:  # the test must hear of any failure
            answer["error"] = f"{type(error).__name__}: {error}"
        emit(answer)
    await program.close()


asyncio.run(main())
