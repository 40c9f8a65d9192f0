"""A producer of timer messages, some of which it recalls before they are due."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cometmq.client import Message, Producer, SendStatus
from cometmq.model.errors import CometError
from cometmq.protocol.recall_handle import decode_handle
from simulation.history import Send, SendType
from simulation.kernel import Process
from simulation.machines import TOPIC
from support.stores.timer_records import Recall

if TYPE_CHECKING:
    from simulation.world import World

RETRIES = 2
DELAY_MS_MAX = 9_000
AT_ONCE_MAX = 3
PAUSE_S_MAX = 1.0
RECALLED, ROLLED = "timer_recalled", "timer_rolled"
TIMER_COUNTS = {RECALLED, ROLLED}
"""The names under which is counted what happens to timer messages: acknowledged recalls, and
messages that were stored again on their way."""


class TimerSends:
    """Sends timer messages while there is load.

    Args:
        world: the simulated cluster.
        process: in which it runs.
    """

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._chance = world.chance
        self._history = world.history
        self._sent = 0

    async def run(self) -> None:
        """Send until the load ends; return when every recall has its response."""
        async with Producer(
            self._world.name_servers,
            group="clock",
            retries=RETRIES,
            client_ip=self._process.ip,
            instance_name="clock",
        ) as producer:
            sending: set[asyncio.Task[None]] = set()
            while self._world.has_load:
                for _ in range(1 + self._chance.below(AT_ONCE_MAX)):
                    sending.add(self._process.spawn(self._send(producer)))
                await asyncio.sleep(self._chance.fraction() * PAUSE_S_MAX)
            await asyncio.wait(sending)

    async def _send(self, producer: Producer) -> None:
        self._sent += 1
        name = f"t{self._sent}"
        delay_ms = 1 + self._chance.below(DELAY_MS_MAX)
        if self._chance.below(2):
            message = Message(topic=TOPIC, body=name.encode(), delay=delay_ms / 1000)
        else:
            at_ms = self._process.now_ms() + delay_ms
            message = Message(topic=TOPIC, body=name.encode(), deliver_at=at_ms)
        note = self._world.note
        send = Send(note(f"send {name} due after {delay_ms} ms"), SendType.TIMER)
        self._history.sends[name] = send
        try:
            receipt = await producer.send(message)
        except CometError as problem:
            note(f"failed {name} {type(problem).__name__} {problem}")
            return
        send.ended = note(f"sent {name} {receipt.status.name} {receipt.queue}")
        send.is_acknowledged = receipt.status is SendStatus.SEND_OK
        if receipt.recall_handle is not None and self._chance.below(3) == 0:
            await asyncio.sleep(self._chance.fraction() * delay_ms / 1000)
            await self._recall(producer, name, receipt.recall_handle)

    async def _recall(self, producer: Producer, name: str, handle: str) -> None:
        self._history.sends[name].may_be_recalled = True
        note = self._world.note
        note(f"recall {name}")
        try:
            await producer.recall(TOPIC, handle)
        except CometError as problem:
            note(f"not recalled {name} {type(problem).__name__} {problem}")
            return
        note(f"recalled {name}")
        self._history.faults[RECALLED] += 1
        topic, broker, due_ms, key = decode_handle(handle)
        self._history.recalls.append(Recall(broker, f"{topic}+{key}", int(due_ms) - 1))
