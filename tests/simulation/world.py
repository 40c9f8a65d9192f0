"""A simulated cluster: one seed is one run with its own faults, always the same.

The product runs as it is: `NameServer`, `Broker`, `Producer`, `PushConsumer`. Replaced are the
clock, the event loop with its sockets and threads, the disk, and the source of random numbers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cometmq.broker import assembly
from cometmq.broker.app import SETTINGS, Broker
from cometmq.broker.sending.group_commit import GroupCommit
from cometmq.client import Message, Producer, PushConsumer, SendStatus, StartFrom, StoredMessage
from cometmq.model.errors import CometError, StoreError
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NameServerSettings
from cometmq.remoting import RemotingSettings, TlsClientSettings, TlsSettings, wire
from cometmq.remoting import server as remoting_server
from cometmq.store import MessageStore, StoreSettings
from cometmq.system.configuration import Configuration, load
from cometmq.system.rocketmq_keys import BROKER_KEYS
from simulation.history import History, Send
from simulation.kernel import EPOCH_MS, PROCESS, Process, SimulatedLoop
from simulation.network import Network
from support.power_files import PowerCutError, PowerFiles
from support.randomness import SeededRandomness

NAME_SERVER = "10.0.0.1"
TOPIC = "orders"
GROUP = "billing"
RETRIES = 2
SETTLE_S = 240.0
"""How long, in virtual time, the cluster has to deliver everything once all faults are over."""
SMALL = {
    "fastPortEnable": "false",
    "tls.server.mode": "disabled",
    "mappedFileSizeCommitLog": str(16 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 50),
    "maxHashSlotNum": "16",
    "maxIndexNum": "64",
    "defaultTopicQueueNums": "2",
}


class Disk(PowerFiles):
    """The disk of a machine, which takes the process on it along when its power fails."""

    process: Process | None = None

    def operate(self) -> None:
        try:
            super().operate()
        except PowerCutError:
            if self.process is not None:
                self.process.die()
            raise


class SimulatedCommit(GroupCommit):
    """Syncs take their time on the virtual clock instead of a thread."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def _begin(self) -> None:
        super()._begin()
        if self._running:
            assert isinstance(self._loop, SimulatedLoop)
            chance = self._loop.chance
            takes_s = 0.0005 + chance.fraction() * (0.5 if chance.below(20) == 0 else 0.01)
            self._loop.call_later(takes_s, self._sync)

    def _sync(self) -> None:
        self._requests.put(False)
        self._run()


def _store(settings: StoreSettings, *, threaded: bool, **parts: Any) -> MessageStore:
    return MessageStore(settings, **parts)


class Machine:
    """The machine of a broker: it keeps its disk when the broker dies."""

    def __init__(self, world: World, name: str, ip: str, **settings: str) -> None:
        self.world = world
        self.name = name
        self.disk = world.disk()
        self.process: Process | None = None
        self.broker: Broker | None = None
        self._settings = (
            SMALL
            | {
                "brokerName": name,
                "brokerIP1": ip,
                "bindAddress": ip,
                "listenPort": "10911",
                "namesrvAddr": f"{NAME_SERVER}:9876",
                "storePathRootDir": f"/{name}",
                "flushDiskType": "SYNC_FLUSH",
            }
            | settings
        )
        self.ip = ip

    def start(self) -> None:
        """Boot, and start the broker."""
        self.process = process = self.world.process(self.name, self.ip)
        self.disk.process = process
        self.world.history.note(f"{self.world.loop.now_s:.6f} start {self.name}")
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        configuration = load(SETTINGS, known_keys=BROKER_KEYS, command_line=self._settings)
        self.broker = Broker(configuration, clock=process, files=self.disk)
        try:
            await self.broker.start()
        except StoreError as problem:
            self.world.history.failures.append(f"{self.name} does not start: {problem}")

    def crash(self, *, power: bool) -> None:
        """Kill the process; with ``power`` the disk loses what was not synced."""
        assert self.process is not None
        kind = "power" if power else "kill"
        self.world.history.note(f"{self.world.loop.now_s:.6f} {kind} {self.name}")
        self.process.die()
        self.disk.process = None
        if power:
            self.disk.power_on()
        else:
            self.disk.kill()


class World:
    """One run.

    Args:
        seed: of all choices.
        load_s: how long, in virtual time, there is load and faults happen.
    """

    def __init__(self, seed: int, *, load_s: float = 8.0) -> None:
        self.seed = seed
        self.chance = SeededRandomness(seed)
        self.loop = SimulatedLoop(self.chance)
        self.network = Network(self.loop)
        self.history = History()
        self.is_over = False
        self.disks: list[Disk] = []
        self._load_s = load_s
        self._started = 0
        self._processes: list[Process] = []
        self._sent = 0
        self._ends_s = 0.0

    def disk(self) -> Disk:
        """Return a new disk."""
        disk = Disk(self.chance)
        self.disks.append(disk)
        return disk

    def process(self, name: str, ip: str) -> Process:
        """Return a new process of a machine."""
        process = Process(self.loop, name, ip)
        process.on_death.append(lambda: self._died(process))
        self._processes.append(process)
        return process

    def _died(self, process: Process) -> None:
        self.network.process_died(process)
        if not self.is_over:
            self.loop.call_soon(self.loop.forget, process)  # what its last callback has scheduled

    def run(self) -> History:
        """Run until the end; return what happened."""
        try:
            self.loop.run_until_complete(self._direct())
        finally:
            self._close()
        return self.history

    def _close(self) -> None:
        self.is_over = True
        for process in self._processes:
            process.die()
        for disk in self.disks:
            disk.cut_at = 0
        self.loop.end_tasks()
        for task in self.loop.kept:
            if not task.cancelled():
                task.exception()
        self.loop.close()

    async def _direct(self) -> None:
        server = self.process("namesrv", NAME_SERVER)
        server.spawn(self._serve_names(server))
        await asyncio.sleep(0.01)
        machine = Machine(self, "broker-a", "10.0.0.2")
        machine.start()
        await asyncio.sleep(0.5)
        producer = self.process("producer", "10.0.0.3")
        sending = producer.spawn(self._produce())
        consumer = self._consumer()
        self._ends_s = self.loop.now_s + self._load_s
        while self.loop.now_s < self._ends_s:
            await asyncio.sleep(0.1 + self.chance.fraction() * 1.5)
            kind = self.chance.below(8)
            if kind < 3:
                consumer = await self._break(machine, kind, consumer)
            elif kind == 3:
                self.history.note(f"{self.loop.now_s:.6f} kill consumer")
                consumer.die()
                consumer = self._consumer()
            elif kind == 4:
                self.network.cut_some()
            elif kind == 5:
                ends = [("producer", "consumer")[self.chance.below(2)], "broker-a"]
                for way in ([ends], [ends[::-1]], [ends, ends[::-1]])[self.chance.below(3)]:
                    self.network.part(*way)
                await asyncio.sleep(self.chance.fraction() * 4)
                self.network.heal()
            elif kind == 6:
                self.network.slow_s = self.chance.fraction()
            else:
                assert machine.process is not None
                machine.process.ahead_ms += self.chance.below(20_000) - 10_000
        self.network.heal()
        self.network.slow_s = 0.0
        await asyncio.wait([sending])
        if sending.exception() is not None:
            self.history.failures.append(f"the producer failed: {sending.exception()!r}")
        until_s = self.loop.now_s + SETTLE_S
        while self.history.missing() and self.loop.now_s < until_s:
            await asyncio.sleep(1.0)
        await asyncio.sleep(6.0)  # offsets are committed every 5 s
        assert machine.broker is not None
        offsets = machine.broker.parts.offsets
        committed = {
            (TOPIC, "broker-a", number, 0): offset
            for number in range(8)
            if (offset := offsets.committed(GROUP, TOPIC, number)) is not None
        }
        self.history.failures += self.loop.failures
        self.history.failures = self.history.check(attempts=RETRIES + 1, committed=committed)

    async def _break(self, machine: Machine, kind: int, consumer: Process) -> Process:
        assert machine.process is not None
        if kind == 2:  # at one of its next operations
            machine.disk.cut_at = machine.disk.operations + 1 + self.chance.below(40)
            for _ in range(50):
                await asyncio.sleep(0.05)
                if machine.process.is_dead:
                    break
        machine.crash(power=kind > 0)
        await asyncio.sleep(self.chance.fraction() * 3)
        machine.start()
        return consumer

    # --- processes ------------------------------------------------------------------------------

    async def _serve_names(self, process: Process) -> None:
        settings = NameServerSettings(bind_address=NAME_SERVER, kv_config_path=Path("/kv.json"))
        configuration = Configuration.of(
            settings, RemotingSettings(), TlsSettings(mode="disabled"), TlsClientSettings()
        )
        await NameServer(configuration, clock=process, files=self.disk()).start()

    async def _produce(self) -> None:
        names = f"{NAME_SERVER}:9876"
        async with Producer(
            names, group="shop", retries=RETRIES, client_ip="10.0.0.3", instance_name="producer"
        ) as producer:
            while self.loop.now_s < self._ends_s:
                await asyncio.gather(
                    *(self._send(producer) for _ in range(1 + self.chance.below(4)))
                )
                await asyncio.sleep(self.chance.fraction() * 0.2)

    async def _send(self, producer: Producer) -> None:
        self._sent += 1
        name = f"m{self._sent}"
        body = name.encode() + b"." * self.chance.below(300)
        send = self.history.sends[name] = Send(self.history.note(f"send {name}"))
        try:
            receipt = await producer.send(Message(topic=TOPIC, body=body, keys=[name]))
        except CometError as problem:
            self.history.note(
                f"{self.loop.now_s:.6f} failed {name} {type(problem).__name__} {problem}"
            )
            return
        queue = receipt.queue
        place = queue.topic, queue.broker_name, queue.queue_id, int(receipt.queue_offset)
        send.ended = self.history.note(
            f"{self.loop.now_s:.6f} sent {name} {receipt.status.name} {place}"
        )
        if receipt.status is SendStatus.SEND_OK:
            send.place = place

    def _consumer(self) -> Process:
        self._started += 1
        process = self.process("consumer", "10.0.0.4")
        process.spawn(self._consume(f"consumer-{self._started}"))
        return process

    async def _consume(self, instance: str) -> None:
        consumer = PushConsumer(
            f"{NAME_SERVER}:9876",
            group=GROUP,
            handler=self._handle,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
            client_ip="10.0.0.4",
            instance_name=instance,
        )
        await consumer.start()

    async def _handle(self, message: StoredMessage) -> None:
        name = message.body.decode().rstrip(".")
        longest_s = 3.0 if self.chance.below(8) == 0 else 0.05
        await asyncio.sleep(self.chance.fraction() * longest_s)
        queue = message.queue
        place = queue.topic, queue.broker_name, queue.queue_id, int(message.queue_offset)
        self.history.handled[name].append(place)
        self.history.note(f"{self.loop.now_s:.6f} handled {name} {place}")


@contextmanager
def _replaced() -> Iterator[None]:
    """Replace what the product has from its machine, for all processes of a world."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "GroupCommit", SimulatedCommit)
        patch.setattr(assembly, "MessageStore", _store)
        patch.setattr(remoting_server, "_listen", _listen)
        patch.setattr(wire, "write_batch_of", _write_batch)
        for module, name in _stopwatches():
            patch.setattr(module, name, _monotonic)
        patch.setattr(time, "monotonic", _monotonic)
        patch.setattr(time, "perf_counter", _monotonic)
        patch.setattr(time, "time_ns", _time_ns)
        yield


def _stopwatches() -> list[tuple[ModuleType, str]]:
    return [
        (module, name)
        for path, module in list(sys.modules.items())
        for name in ("monotonic", "perf_counter")
        if path.startswith("cometmq.") and getattr(module, name, None) is getattr(time, name)
    ]


_now: list[SimulatedLoop] = []


def _monotonic() -> float:
    return _now[-1].now_s


def _time_ns() -> int:
    process = PROCESS.get()
    ahead_ms = process.ahead_ms if process is not None else 0
    return (EPOCH_MS + ahead_ms) * 1_000_000 + int(_now[-1].now_s * 1e9)


def _write_batch(loop: Any) -> wire.WriteBatch:
    """Return the write batch of a process, which has the loop for itself."""
    process = PROCESS.get()
    assert process is not None
    if process.write_batch is None:
        process.write_batch = wire.WriteBatch(loop)
    batch: wire.WriteBatch = process.write_batch
    return batch


def _listen(host: str, port: int, backlog: int) -> Any:
    return _now[-1].network.listen(host, port, backlog)


def simulate(seed: int, **options: Any) -> History:
    """Run the world of a seed; return what happened, and what is wrong with it."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    random_state = random.getstate()
    random.seed(seed)
    collects = gc.isenabled()
    gc.disable()
    try:
        with _replaced():
            world = World(seed, **options)
            _now.append(world.loop)
            try:
                return world.run()
            finally:
                _now.pop()
    finally:
        random.setstate(random_state)
        logging.disable(level)
        if collects:
            gc.enable()
