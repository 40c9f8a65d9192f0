"""The machines of a simulated cluster: processes die and start again, disks stay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.access.account_settings import AccountSettings
from cometmq.broker.app import SETTINGS, Broker
from cometmq.broker.core import Core
from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.broker.failover.epochs.epoch_file import Epoch
from cometmq.broker.replication.greeting import SlaveNames
from cometmq.broker.role import Role
from cometmq.controller.app import Controller
from cometmq.controller.config import ControllerSettings, EtcdSettings
from cometmq.model import property_names as names
from cometmq.model.errors import StoreError
from cometmq.model.topic import TIMER_TOPIC, TopicConfig
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NameServerSettings
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting import RemotingSettings, TlsClientSettings, TlsSettings
from cometmq.store import MessageStore
from cometmq.system.configuration import Configuration, load
from cometmq.system.rocketmq_keys import BROKER_KEYS
from simulation.history import StoredRow
from simulation.kernel import PROCESS, Process, SimulatedLoop
from support.controllers.etcd_model import EtcdStore, ModelEtcd
from support.stores.power_files import Fault, PowerCutError, PowerFiles
from support.stores.timer_records import TimerRecord

if TYPE_CHECKING:
    from simulation.world import World

POWER_LOST = "power_lost"
"""The name under which losses of power of brokers are counted."""
SESSION, OWNER, EPOCH = "SESSION", "OWNER", "EPOCH"
"""Properties of a row with the name of its producer session, its attempt, and the epoch of that."""
STOP_S = 20.0
"""How long, in virtual time, a broker has to stop."""
TOPIC = "orders"
GROUP = "billing"
QUEUES = 2
NAME_SERVER_PORT = 9876
CONTROLLER_PORT = 9878
HA_PORT = 10912
"""The port from which slaves copy the log."""
SMALL = {
    "fastPortEnable": "false",
    "tls.server.mode": "disabled",
    "mappedFileSizeCommitLog": str(16 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 50),
    "maxHashSlotNum": "16",
    "maxIndexNum": "64",
    "defaultTopicQueueNums": str(QUEUES),
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "5000",
}
WITH_TIMERS = {
    "recallMessageEnable": "true",
    "mappedFileSizeTimerLog": "4096",
    "timerRollWindowSlot": "5",
}
"""Messages that are due after more than five seconds are stored again on their way."""


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
        process = PROCESS.get()
        if self._running and process is not None:
            assert isinstance(self._loop, SimulatedLoop)
            chance = self._loop.chance
            takes_s = 0.0005 + chance.fraction() * (0.5 if chance.below(20) == 0 else 0.01)
            takes_s += chance.fraction() * process.slow_sync_s
            self._loop.call_later(takes_s, self._sync)

    def _sync(self) -> None:
        self._requests.put(False)
        self._run()


class Machine:
    """A machine with one process.

    Args:
        world: where it stands.
        name: of the process.
        ip: its address.
    """

    def __init__(self, world: World, name: str, ip: str) -> None:
        self.world = world
        self.name = name
        self.ip = ip
        self.disk: Disk = world.disk()
        self.process: Process | None = None
        self.is_lost = False
        """Whether it never starts again."""
        self._ahead_ms = 0

    def set_clock(self, ahead_ms: int) -> None:
        """Set the wall clock of the machine."""
        self._ahead_ms = ahead_ms
        if self.process is not None:
            self.process.ahead_ms = ahead_ms

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and not self.process.is_dead

    def start(self) -> None:
        """Boot, and start the process."""
        self.process = process = self.world.process(self.name, self.ip)
        process.ahead_ms = self._ahead_ms
        self.disk.process = process
        self.world.note(f"start {self.name}")
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        raise NotImplementedError

    def crash(self, *, power: bool) -> None:
        """Kill the process; with ``power`` the disk loses what was not synced."""
        assert self.process is not None
        self.world.note(f"{'power' if power else 'kill'} {self.name}")
        self._ahead_ms = self.process.ahead_ms
        self.process.die()
        self.disk.process = None
        if power:
            self.world.history.faults[POWER_LOST] += isinstance(self, BrokerMachine)
            self.disk.power_on()
        else:
            self.disk.kill()

    def cut_at_operation(self, number: int) -> None:
        """Let the power fail at one of the next operations of the disk."""
        self.disk.cut_at = self.disk.operations + number

    def refuse_at_operation(self, number: int, code: int, *, lasts: bool) -> None:
        """Let the disk refuse one of the next operations, or all from then on."""
        self.disk.fault = Fault(self.disk.operations + number, code, lasts)


class NameServerMachine(Machine):
    """The machine of a name server."""

    async def _run(self, process: Process) -> None:
        settings = NameServerSettings(bind_address=self.ip, kv_config_path=Path("/kv.json"))
        configuration = Configuration.of(
            settings,
            AccountSettings(),
            RemotingSettings(),
            TlsSettings(mode="disabled"),
            TlsClientSettings(),
        )
        await NameServer(configuration, clock=process, files=self.disk).start()


class ControllerMachine(Machine):
    """The machine of a controller; etcd is elsewhere.

    Args:
        world: where it stands.
        name: of the process.
        ip: its address.
        store: what etcd keeps.
    """

    def __init__(self, world: World, name: str, ip: str, store: EtcdStore) -> None:
        super().__init__(world, name, ip)
        self.etcd = ModelEtcd(store, world.network.delay_s)
        """The connection to etcd, which faults cut."""
        self.configuration: Configuration | None = None
        """The settings of the process that was started last."""

    async def _run(self, process: Process) -> None:
        configuration = Configuration.of(
            ControllerSettings(
                bind_address=self.ip,
                listen_port=CONTROLLER_PORT,
                expiry_scan_ms=1_000,
                master_scan_ms=1_000,
            ),
            EtcdSettings(),
            AccountSettings(),
            RemotingSettings(),
            TlsSettings(mode="disabled"),
            TlsClientSettings(),
        )
        self.configuration = configuration
        await Controller(configuration, self.etcd, clock=process).start()


class BrokerMachine(Machine):
    """The machine of a broker.

    Args:
        world: where it stands.
        name: of the process.
        ip: its address.
        broker_name: the name that it shares with its slaves.
        settings: beside those that all brokers have.
    """

    def __init__(
        self, world: World, name: str, ip: str, broker_name: str, settings: dict[str, str]
    ) -> None:
        super().__init__(world, name, ip)
        self.broker_name = broker_name
        self.own_settings = settings
        """Those that not all brokers have."""
        self.broker: Broker | None = None
        self.settings = (
            SMALL
            | {
                "brokerName": broker_name,
                "brokerIP1": ip,
                "bindAddress": ip,
                "listenPort": "10911",
                "namesrvAddr": world.name_servers,
                "storePathRootDir": f"/{name}",
            }
            | (WITH_TIMERS if world.layout.has_timers else {})
            | settings
        )

    @property
    def is_elected(self) -> bool:
        """Whether controllers decide its role."""
        return "enableControllerMode" in self.settings

    @property
    def is_slave(self) -> bool:
        """Whether it copies the log of another broker, or does not know yet what it is."""
        if not self.is_elected:
            return self.settings.get("brokerRole") == "SLAVE"
        core = self._core
        return core is None or core.role.is_slave

    def start(self) -> None:
        """Boot, and start the process; what the one before had is gone."""
        self.broker = None
        super().start()
        self.world.begin_term(self.broker_name)

    async def _run(self, process: Process) -> None:
        configuration = load(SETTINGS, known_keys=BROKER_KEYS, command_line=self.settings)
        self.broker = Broker(configuration, clock=process, files=self.disk)
        try:
            await self.broker.start()
        except StoreError as problem:
            self.world.history.failures.append(f"{self.name} does not start: {problem}")
            return
        # Access control sets that, and takes other ways through the builds.
        self.broker.features.replication.master._needs_greeting = self.world.layout.needs_tickets
        if self.is_elected:
            role = self.broker.core.role
            role.on_change(lambda: self._note_role(process, role))
            self._note_role(process, role)
        if self.world.layout.creates_topic and not self.is_slave:
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            await self.broker.core.topics.create_all([config])

    def _note_role(self, process: Process, role: Role) -> None:
        self.world.note(f"{role.name} {self.name}")
        self.world.begin_term(self.broker_name)
        masters = self.world.masters[self.broker_name]
        masters.discard(process) if role.is_slave else masters.add(process)

    async def stop(self, *, power: bool) -> None:
        """Stop the process as SIGTERM does; a store that cannot be closed is left as it is.

        Args:
            power: whether the power fails after that, if the store was closed.
        """
        process, broker = self.process, self.broker
        if process is None or broker is None or self._core is None:
            self.crash(power=False)  # it is starting
            return
        self.world.note(f"stop {self.name}")
        task = process.spawn(self._stop(broker))
        await asyncio.wait([task], timeout=STOP_S)
        self.crash(power=power and task.done() and task.result())

    async def _stop(self, broker: Broker) -> bool:
        with contextlib.suppress(StoreError):
            await broker.stop()
            return True
        return False

    def empty(self, *, keeps_identity: bool) -> None:
        """Empty the store while the process is down, perhaps all but its id and names."""
        self.world.note(f"empty {self.name} keeps_identity={keeps_identity}")
        self.disk.put_back(
            {
                path: data
                for path, data in self.disk.image().items()
                if keeps_identity and path.name.startswith(("brokerIdentity", "storeIdentity"))
            }
        )

    # --- what it has ----------------------------------------------------------------------------

    @property
    def _core(self) -> Core | None:
        """Of the broker; None if it does not run, or has not opened its store."""
        if self.broker is None or not self.is_up or not self.broker.is_open:
            return None
        return self.broker.core

    @property
    def _store(self) -> MessageStore | None:
        return None if self._core is None else self._core.store

    @property
    def names(self) -> SlaveNames | None:
        """What it says of itself to controllers and masters; None before it has an id."""
        if self.broker is None or self._core is None:
            return None
        elected = self.broker.features.failover.elected
        if elected is None or elected._names.identity is None:
            return None
        names = elected.slave_names()
        return names if names.broker_id > 0 else None

    def connected_slaves(self) -> set[str]:
        """Return the addresses of the slaves to which it sends its log."""
        if self.broker is None or self._core is None:
            return set()
        return {slave.host for slave in self.broker.features.replication.master.slaves}

    def log_end(self) -> tuple[int, int] | None:
        """Return where its log ends, for itself and for readers; None if it does not run."""
        store = self._store
        return None if store is None else (store.written_to, store.readable_to)

    def has_copied(self, master: BrokerMachine, end: tuple[int, int]) -> bool:
        """Return whether this slave has the tables of its master, and its log up to an end."""
        mine, its, log_end = self._core, master._core, self.log_end()
        return (
            mine is not None
            and its is not None
            and log_end is not None
            and log_end[0] >= end[0]
            and mine.topics.version == its.topics.version
            and mine.static_topics.version == its.static_topics.version
        )

    def committed(self, queue_id: int) -> int | None:
        """Return the committed offset of the group in a queue of the topic."""
        core = self._core
        return None if core is None else core.offsets.committed(GROUP, TOPIC, queue_id)

    def _records(
        self, topic: str, queues: int
    ) -> Iterator[tuple[int, RecordParts, dict[str, str]]]:
        """Yield queue, record and properties of a topic, also of what readers do not see."""
        store = self._store
        for queue_id in range(queues if store is not None else 0):
            assert store is not None
            for log_offset, size in store.written_units(topic, queue_id, 0):
                record = store.written_record_at(log_offset, size)
                assert record is not None, f"{self.name} has no record at {log_offset}"
                parts = split_record(record)
                yield queue_id, parts, decode_properties(parts.properties)

    def rows(self) -> Iterator[StoredRow]:
        """Yield the rows of producer sessions in its log."""
        for queue_id, record, properties in self._records(TOPIC, QUEUES):
            if SESSION in properties:
                yield StoredRow(
                    record.body.decode().rstrip("."),
                    properties[SESSION],
                    properties[OWNER],
                    int(properties[EPOCH]),
                    (TOPIC, self.broker_name, queue_id, record.queue_offset),
                )

    def timer_records(self) -> Iterator[TimerRecord]:
        """Yield the messages of the timer topic in its log, and what was delivered of them."""
        for topic, queues in ((TIMER_TOPIC, 1), (TOPIC, QUEUES)):
            for _, record, properties in self._records(topic, queues):
                if names.TIMER_OUT_MS in properties:
                    yield TimerRecord.of(self.broker_name, topic, record, properties)

    def has_waiting_timers(self) -> bool:
        """Whether messages wait for their time, as far as it knows."""
        if self.broker is None or self._core is None or self.is_slave:
            return False
        delivery = self.broker.features.timers.delivery.made()
        if delivery is None:
            return False
        return delivery.figures().queue_behind > 0 or not delivery.index.is_empty

    @property
    def _epochs(self) -> list[Epoch]:
        """The epochs of the log; those that have no bytes do not reach all copies."""
        assert self.broker is not None
        elected = self.broker.features.failover.elected
        assert elected is not None
        epochs = elected.epochs
        ends = [epoch.start for epoch in epochs[1:]] + [self.broker.core.store.written_to]
        return [epoch for epoch, end in zip(epochs, ends, strict=False) if epoch.start != end]

    def differences_from(self, master: BrokerMachine) -> list[str]:
        """Return where log and queues differ from those of its master, as far as both have them."""
        mine, other = self._store, master._store
        if mine is None or other is None:
            return [f"{self.name} or {master.name} does not run"]
        found = []
        start = max(mine.min_log_offset, other.min_log_offset)
        end = min(mine.written_to, other.written_to)
        while start < end:
            here, there = mine.log_bytes(start, end - start), other.log_bytes(start, end - start)
            if here is None or there is None or here != there:
                found.append(f"the log of {self.name} differs behind {start}")
                break
            start += len(here)
        for queue_id in range(QUEUES):
            bounds = mine.bounds(TOPIC, queue_id), other.bounds(TOPIC, queue_id)
            if bounds[0][1] != bounds[1][1]:
                found.append(f"queue {queue_id} of {self.name} and its master ends at {bounds}")
        if self.is_elected and self._epochs != master._epochs:
            found.append(f"the epochs of {self.name} are {self._epochs}, not {master._epochs}")
        return found
