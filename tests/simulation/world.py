"""A simulated cluster: one seed is one run with its own faults, always the same.

The product runs as it is: `NameServer`, `Broker`, `Producer`, `PushConsumer`. Replaced are the
clock, the event loop with its sockets and threads, the disk, and the source of random numbers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from cometmq.client import (
    AdminClient,
    LocalState,
    Message,
    PullConsumer,
    PushConsumer,
    SendStatus,
    StartFrom,
    StoredMessage,
    TransactionProducer,
)
from cometmq.client._connection import instance
from cometmq.controller.broker_log_states import State as LogState
from cometmq.controller.broker_set import BrokerSet, Epochs
from cometmq.model.errors import CometError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.controller import CleanBrokerDataRequest, ControllerElectMasterRequest
from cometmq.protocol.logical_queues import logical_broker_name
from cometmq.remoting import RemotingClient, RemotingSettings
from simulation.faults import Faults
from simulation.history import History, QueuePosition, Send, SendType
from simulation.job import Job
from simulation.kernel import Process, SimulatedLoop
from simulation.layouts import LAYOUTS, Layout, layout_of
from simulation.machines import (
    CONTROLLER_PORT,
    GROUP,
    NAME_SERVER_PORT,
    QUEUES,
    TOPIC,
    BrokerMachine,
    ControllerMachine,
    Disk,
    Machine,
    NameServerMachine,
)
from simulation.network import Network
from simulation.poppers import Poppers
from simulation.replacements import replaced
from simulation.strangers import Stranger
from simulation.timer_sends import ROLLED, TimerSends
from support.checks.randomness import SeededRandomness
from support.controllers.etcd_model import EtcdStore
from support.stores.timer_records import wrong_timers

RETRIES = 2
SETTLE_S = 240.0
"""How long, in virtual time, the cluster has to deliver everything once all faults are over."""
SETS = "/brokerSets/"
"""A part of the names of the keys in etcd with broker sets."""
CLEANS_MAX = 60
"""How often, once a second, an operator tries to remove the id of a store that is gone."""
PULLS_MAX = 1_000
"""Pulls by which a queue is read again."""
PROMOTED_S = 5.0
"""How long there is load after a slave has taken the place of its master."""


class World:
    """One run.

    Args:
        seed: of all choices.
        layout: the cluster; None to let the seed choose.
    """

    def __init__(self, seed: int, *, layout: Layout | None = None) -> None:
        for registry in (instance._instances, instance._living):  # of processes of other worlds
            registry.clear()
        self.chance = SeededRandomness(seed)
        self.layout = layout or layout_of(seed)
        self.loop = SimulatedLoop(self.chance)
        self.network = Network(self.loop)
        self.history = History()
        self.is_over = False
        self.disks: list[Disk] = []
        self.consumers: list[Process] = []
        self.strangers: list[Stranger] = []
        self._started = 0
        self._processes: list[Process] = []
        self._sent = 0
        self._ends_s = float("inf")
        self._producer: TransactionProducer | None = None
        self._moves = 0
        self.latest_ahead_ms = 0
        """How far the wall clock of a process was ahead at most."""
        self._is_moving = self._rests = False
        """Whether the operator moves queues now, and whether it begins no move."""
        self._lost = ""
        """The name of the broker whose master is lost; empty for none."""
        self._terms: Counter[str] = Counter()
        self.masters: dict[str, set[Process]] = defaultdict(set)
        """The processes of each name that take themselves for elected, also those that died."""
        self._ips = 0
        count = 1 + seed // len(LAYOUTS) % 2
        self.name_server_machines: list[Machine] = [
            NameServerMachine(self, f"namesrv-{number}", self.new_ip())
            for number in range(1, count + 1)
        ]
        self.name_servers = ";".join(
            f"{machine.ip}:{NAME_SERVER_PORT}" for machine in self.name_server_machines
        )
        self.etcd = EtcdStore(self.loop.time)
        """What the controllers keep."""
        self._newest: Epochs = (0, 0)
        """The newest epochs of the broker set, when etcd was restored."""
        self.controllers = [
            ControllerMachine(self, f"controller-{number}", self.new_ip(), self.etcd)
            for number in range(1, self.layout.controllers + 1)
        ]
        self.brokers = list(self._new_brokers())
        self.note(f"{self.layout.name}, {count} name servers")

    def _new_brokers(self) -> Iterator[BrokerMachine]:
        layout = self.layout
        for broker_name in layout.masters:
            settings = layout.settings
            if broker_name == layout.masters[0]:
                settings = settings | layout.master_settings
            if layout.controllers:
                addresses = (f"{machine.ip}:{CONTROLLER_PORT}" for machine in self.controllers)
                settings |= {"controllerAddr": ";".join(addresses)}
            for number in range(layout.replicas):
                name = f"{broker_name}-{number}" if layout.controllers else broker_name
                yield BrokerMachine(self, name, self.new_ip(), broker_name, settings)
        for number in range(1, layout.slaves + 1):
            settings = layout.settings | {"brokerRole": "SLAVE", "brokerId": str(number)}
            name = layout.masters[0]
            yield BrokerMachine(self, f"{name}-{number}", self.new_ip(), name, settings)

    def new_ip(self) -> str:
        """Return the address of one more machine."""
        self._ips += 1
        return f"10.0.{self._ips // 256}.{self._ips % 256}"

    # --- what faults use ------------------------------------------------------------------------

    @property
    def has_load(self) -> bool:
        """Whether the load goes on."""
        return self.loop.now_s < self._ends_s

    @property
    def machines(self) -> list[Machine]:
        """All machines of servers, in the order in which they start."""
        return [*self.name_server_machines, *self.controllers, *self.brokers]

    def living(self) -> list[Process]:
        """Return all processes that run."""
        return [process for process in self._processes if not process.is_dead]

    def begin_term(self, broker_name: str = "") -> None:
        """Note that another process may serve a name from now on, or that a clock has jumped."""
        self._terms[broker_name] += 1

    def term(self, broker_name: str) -> tuple[int, ...]:
        """Return what stays the same while one process serves a name, and no clock jumps."""
        return self._terms[broker_name], self._terms[""]

    def has_two_masters(self, broker_name: str) -> bool:
        """Return whether a broker does not know yet that another one was elected."""
        return sum(not process.is_dead for process in self.masters[broker_name]) > 1

    def copy_of(self, machine: BrokerMachine) -> BrokerMachine:
        """Return a new machine whose disk has what another one's has now."""
        copy = BrokerMachine(
            self, f"{machine.name}-copy", self.new_ip(), machine.broker_name, machine.own_settings
        )
        copy.settings["storePathRootDir"] = machine.settings["storePathRootDir"]
        copy.disk.put_back(machine.disk.image())
        self.note(f"copy {machine.name}")
        return copy

    def newcomer(self, number: int) -> BrokerMachine:
        """Return a new machine with an empty disk, whose broker has the name of the others.

        No name server shows it: clients would send to it, and its disk is lost in the end.

        Args:
            number: a part of its name.
        """
        first = self.brokers[0]
        newcomer = BrokerMachine(
            *(self, f"{first.broker_name}-new-{number}", self.new_ip(), first.broker_name),
            first.own_settings,
        )
        newcomer.settings["namesrvAddr"] = f"{self.new_ip()}:{NAME_SERVER_PORT}"
        return newcomer

    def slaves_of(self, master: BrokerMachine) -> list[BrokerMachine]:
        """Return the machines that copy the log of another one."""
        return [
            machine
            for machine in self.brokers
            if machine.is_slave and machine.broker_name == master.broker_name
        ]

    def may_lose_power(self, machine: Machine) -> bool:
        """Whether nothing may be lost if the power of a machine fails."""
        if not isinstance(machine, BrokerMachine):
            return True
        if machine.is_elected:
            return self.layout.has_power_cuts or self.has_copy(machine)
        return machine.is_slave or (self.layout.has_power_cuts and not self.slaves_of(machine))

    def backup_etcd(self) -> dict[str, bytes]:
        """Return the broker sets."""
        return self.etcd.backup(SETS)

    def clear_etcd(self) -> None:
        """Let etcd have no broker sets."""
        self.etcd.clear(SETS)

    def restore_etcd(self, backup: dict[str, bytes]) -> None:
        """Let etcd have broker sets as they were; it may have newer ones, or none."""
        known = self._broker_set()
        if known is not None and known.set_id == self._set_of(backup).set_id:
            self._newest = max(self._newest, known.epochs)
        self.etcd.restore(backup)

    def _broker_set(self) -> BrokerSet | None:
        """The broker set of the first name, as etcd has it."""
        found = self.etcd.backup(f"{SETS}{self.layout.masters[0]}")
        return self._set_of(found) if found else None

    @staticmethod
    def _set_of(backup: dict[str, bytes]) -> BrokerSet:
        (value,) = backup.values()
        return msgspec.json.decode(value, type=BrokerSet)

    def _members(self) -> list[BrokerMachine]:
        """Return the living members of the in-sync set whose log was compared.

        As long as etcd knows less than it has known, it does not say who the members are.
        """
        known = self._broker_set()
        if known is None or known.epochs < self._newest:
            return []
        found = []
        for machine in self.brokers:
            names = machine.names
            replica = None if names is None else known.replicas.get(names.broker_id)
            if (
                names is not None
                and replica is not None
                and names.broker_id in known.in_sync
                and replica.incarnation == names.incarnation
                and replica.log_state is LogState.VERIFIED
            ):
                found.append(machine)
        return found

    def is_registered(self) -> bool:
        """Whether all brokers run, belong to the broker set in etcd, and have an id there."""
        known = self._broker_set()
        return known is not None and all(
            (names := machine.names) is not None
            and names.set_id == known.set_id
            and names.broker_id in known.replicas
            for machine in self.brokers
        )

    def has_copy(self, machine: BrokerMachine) -> bool:
        """Whether another living broker has all that was acknowledged."""
        return any(member is not machine for member in self._members())

    def _check_members(self, name: str, log_offset: int) -> None:
        """Fail if a member of the in-sync set lacks a message that is acknowledged now."""
        for member in self._members():
            end = member.log_end()
            if end is not None and end[0] <= log_offset:
                self.history.failures.append(
                    f"early: {name} at log offset {log_offset} was acknowledged, but the log of"
                    f" the member {member.name} ends at {end[0]} at {self.loop.now_s:.6f}"
                )

    def forget(self, number: int) -> None:
        """Let the controllers forget the broker with an id, whose store is gone."""
        process = self.process("operator", self.new_ip())
        process.spawn(self._clean(number)).add_done_callback(lambda _: process.die())

    def _elect_unclean(self) -> None:
        """Let the broker with the largest log be elected, if the set waits for lost messages.

        Members have failed at once, and of one the store was replaced, or it has lost its end with
        the power: then the controllers cannot know whether another one has all. If the only member
        was elected and has not led, those before this election are members, too.
        """
        known = self._broker_set() if self.controllers else None
        if known is None or known.master_id is not None:
            return
        members = {*known.in_sync, *known.in_sync_before}
        states = [known.replicas[number].log_state for number in members]
        if LogState.REPLACED in states or not self.layout.has_power_cuts:
            for machine in self.controllers:
                assert machine.configuration is not None
                machine.configuration.set({"enableElectUncleanMaster": "true"})

    async def _clean(self, number: int) -> None:
        header = CleanBrokerDataRequest(
            cluster_name="DefaultCluster",
            broker_name=self.layout.masters[0],
            broker_controller_ids_to_clean=str(number),
        )
        client = RemotingClient(RemotingSettings())
        for _ in range(CLEANS_MAX):
            await asyncio.sleep(1.0)
            known = self._broker_set()
            if known is not None and number not in known.replicas:
                break
            for machine in self.controllers:
                with suppress(CometError):
                    address = f"{machine.ip}:{CONTROLLER_PORT}"
                    code = RequestCode.CLEAN_BROKER_DATA
                    found = await client.call(address, code, header, timeout=3.0)
                    self.note(f"clean {number} by {machine.name}: {found.code}")
        await client.close()

    def operate(self, number: int) -> None:
        """Ask the controllers to elect the broker with that id."""
        process = self.process("operator", self.new_ip())
        process.spawn(self._elect(number)).add_done_callback(lambda _: process.die())

    async def _elect(self, number: int) -> None:
        header = ControllerElectMasterRequest(
            cluster_name="DefaultCluster",
            broker_name=self.layout.masters[0],
            broker_id=number,
            designate_elect=True,
        )
        client = RemotingClient(RemotingSettings())
        for machine in self.controllers:
            with suppress(CometError):
                address = f"{machine.ip}:{CONTROLLER_PORT}"
                code = RequestCode.CONTROLLER_ELECT_MASTER
                found = await client.call(address, code, header, timeout=3.0)
                self.note(f"elected {number} by {machine.name}: {found.code}")
        await client.close()

    def note(self, text: str) -> int:
        """Append an event to the history; return its number."""
        return self.history.note(f"{self.loop.now_s:.6f} {text}")

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

    # --- the run --------------------------------------------------------------------------------

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
        for machine in self.machines:
            machine.start()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        moving: list[asyncio.Task[None]] = []
        if self.layout.moves_queues:
            created = asyncio.Event()
            moving.append(self.process("operator", self.new_ip()).spawn(self._move_queues(created)))
            await created.wait()
        producer = self.process("producer", self.new_ip())
        sending = producer.spawn(self._produce(producer))
        for number in range(1 + self.chance.below(2)):
            self.consumers.append(self._consumer(f"consumer-{number}", self.new_ip()))
        if self.layout.has_timers:
            clock = self.process("clock", self.new_ip())
            moving.append(clock.spawn(TimerSends(self, clock).run()))
        job = Job(self)
        writing = self.loop.create_task(job.run()) if self.layout.has_job else None
        poppers = Poppers(self) if self.layout.has_pop else None
        popping = None if poppers is None else self.loop.create_task(poppers.run())
        ends_s = self.loop.now_s + self.layout.load_s
        faults = Faults(self)
        while self.loop.now_s < ends_s:
            await asyncio.sleep(0.1 + self.chance.fraction() * 1.5)
            await faults.happen()
        faults.end()
        if self.layout.has_timers:  # else a message of a clock that was ahead would not be due
            for machine in self.brokers:
                machine.set_clock(self.latest_ahead_ms)
        if self.layout.loses_master and self.layout.moves_queues:
            await self._lose_master()
        elif self.layout.loses_master:
            await self._replace_master()
            await asyncio.sleep(PROMOTED_S)
        self._ends_s = self.loop.now_s
        await asyncio.wait([sending, *moving])
        until_s = self.loop.now_s + SETTLE_S
        while self.loop.now_s < until_s and (
            (writing is not None and not writing.done())
            or (poppers is not None and poppers.are_waiting())
            or self.history.missing()
            or self.history.undelivered()
            or self._lagging()
            or any(machine.has_waiting_timers() for machine in self.brokers)
        ):
            if until_s - self.loop.now_s < SETTLE_S / 2:
                self._elect_unclean()
            await asyncio.sleep(1.0)
            if poppers is not None:
                poppers.note_health(self._lagging())
        if poppers is not None and popping is not None:
            await popping
            self.history.failures += poppers.finish()
        if self._lost:
            await self.process("auditor", self.new_ip()).spawn(self._read_again())
        await asyncio.sleep(6.0)  # offsets are committed every 5 s
        while self.loop.now_s < until_s and self._lagging():  # a transaction was checked meanwhile
            await asyncio.sleep(1.0)
        if writing is not None:
            self._end_job(job, writing)
        if self.layout.has_timers:
            self._check_timers()
        self.history.failures += self.loop.failures
        self.history.failures = self.history.check(
            attempts=RETRIES + 1,
            committed=self._committed(),
            has_lost_master=self.layout.loses_master,
        )
        self.history.failures += self._different_copies()
        for stranger in self.strangers:
            self.history.failures += stranger.kept_open()

    def _end_job(self, job: Job, writing: asyncio.Task[None]) -> None:
        """End the job, and read what the masters have of its rows."""
        job.end()
        if writing.done():
            writing.result()
        else:
            self.history.failures.append("stuck: a task of the job has not finished")
        masters = [machine for machine in self.brokers if not machine.is_slave]
        self.history.rows += [row for master in masters for row in master.rows()]

    def _check_timers(self) -> None:
        """Check what the masters have of timer messages."""
        masters = [machine for machine in self.brokers if not machine.is_slave]
        records = [record for master in masters for record in master.timer_records()]
        self.history.faults[ROLLED] += sum(each.is_copy and each.waits for each in records)
        self.history.failures += wrong_timers(records, self.history.recalls)

    async def _replace_master(self) -> None:
        """Lose the machine of the master for ever, and let its slave take its place.

        The power of both fails at the same time: what the master had acknowledged is on the disk
        of the slave. Consumers start again, because the new master has less than they were given.
        """
        master = self.brokers[0]
        (slave,) = self.slaves_of(master)
        slave.crash(power=True)
        master.crash(power=True)
        master.is_lost = True
        self.note(f"lost {master.name}")
        self.brokers.remove(master)
        await asyncio.sleep(self.chance.fraction() * 3)
        for number in range(len(self.consumers)):
            self.replace_consumer(number)
        slave.settings |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
        slave.start()

    async def _lose_master(self) -> None:
        """Lose the machine of the first master for ever, when its slave has copied the mappings.

        Meanwhile no queue moves: a slave copies tables every ten seconds only.
        """
        master = self.brokers[0]
        (slave,) = self.slaves_of(master)
        self._rests = True
        end = None
        while end is None or not slave.has_copied(master, end):
            await asyncio.sleep(0.5)
            if end is None and not self._is_moving:
                end = master.log_end()
        master.crash(power=True)
        master.is_lost = True
        self.note(f"lost {master.name}")
        self.brokers.remove(master)
        self._lost, self._rests = master.broker_name, False

    # --- the brokers ----------------------------------------------------------------------------

    def _pairs(self) -> Iterator[tuple[BrokerMachine, BrokerMachine]]:
        for master in self.brokers:
            for slave in () if master.is_slave else self.slaves_of(master):
                yield master, slave

    def _lagging(self) -> list[str]:
        """Return the slaves that do not have all of the log, and the names without a master."""
        names = {machine.broker_name: None for machine in self.brokers if not machine.is_slave}
        return [
            *(name for name in self.layout.masters if name not in {*names, self._lost}),
            *(s.name for master, s in self._pairs() if s.log_end() != master.log_end()),
        ]

    def _different_copies(self) -> list[str]:
        found = [f"diverging: {name} has no master, or lacks messages" for name in self._lagging()]
        for master, slave in self._pairs():
            found += [f"diverging: {text}" for text in slave.differences_from(master)]
        return found

    def _committed(self) -> list[tuple[QueuePosition, int]]:
        if self.layout.moves_queues:  # a broker has physical offsets, which handlers do not see
            return []
        return [
            ((TOPIC, machine.broker_name, number, 0), offset)
            for machine in self.brokers
            for number in range(QUEUES)
            if (offset := machine.committed(number)) is not None
        ]

    # --- the operator ---------------------------------------------------------------------------

    async def _move_queues(self, created: asyncio.Event) -> None:
        """Create the topic as a static one, and move its queues until the load ends.

        Each move may fail in any of its steps; the last one is repeated until it has finished.
        """
        admin = AdminClient(self.name_servers, client_ip="10.0.9.9", instance_name="operator")
        await admin.start()
        masters = self.layout.masters
        while not created.is_set():
            try:
                await admin.create_static_topic(TOPIC, QUEUES, brokers=masters[:2])
                created.set()
            except CometError as problem:
                self.note(f"not created {problem}")
                await asyncio.sleep(0.5)
        finished: str | None = None
        while self.loop.now_s < self._ends_s or finished != self._lost:
            await asyncio.sleep(0.2 + self.chance.fraction())
            if self._rests:
                continue
            targets = [name for name in masters if self.chance.below(2)] or [masters[0]]
            lost = self._lost
            if lost:
                targets = [name for name in targets if name != lost] or [masters[-1]]
            self._is_moving = True
            try:
                moves = await admin.move_static_queues(TOPIC, targets, lost=lost or None)
            except CometError as problem:
                finished = None
                self.note(f"not moved to {targets} {problem}")
            else:
                finished = lost
                self._moves += len(moves)
                self.note(f"moved to {targets} {[move.queue_id for move in moves]}")
            self._is_moving = False
        self.history.faults["moves"] = self._moves
        await admin.close()

    async def _read_again(self) -> None:
        """Read the whole static topic, also the messages that only the slave of a lost master has.

        What was consumed before the loss is read from it, too.
        """
        found: set[str] = set()
        async with PullConsumer(
            self.name_servers, group="auditors", client_ip="10.0.9.8", instance_name="auditor"
        ) as consumer:
            for number in range(QUEUES):
                queue, offset = MessageQueue(TOPIC, logical_broker_name(), number), 0
                for _ in range(PULLS_MAX):
                    try:
                        pulled = await consumer.pull(queue, offset)
                    except CometError as problem:
                        self.note(f"not read {number} {offset} {problem}")
                        await asyncio.sleep(1.0)
                        continue
                    found |= {key for message in pulled.messages for key in message.keys}
                    if pulled.next_offset <= offset:
                        break
                    offset = pulled.next_offset
        self.history.failures += [
            f"unreadable: {name} was acknowledged"
            for name, send in self.history.sends.items()
            if send.position is not None and name not in found
        ]

    # --- the clients ----------------------------------------------------------------------------

    async def _produce(self, process: Process) -> None:
        """Send until the load ends; after that the producer still answers checks."""
        self._producer = producer = TransactionProducer(
            self.name_servers,
            group="shop",
            listener=self,
            retries=RETRIES,
            topics=(TOPIC,),
            client_ip=process.ip,
            instance_name="producer",
        )
        await producer.start()
        while self.has_load:
            await asyncio.gather(*(self._send(producer) for _ in range(1 + self.chance.below(4))))
            await asyncio.sleep(self.chance.fraction() * 0.2)

    async def _send(self, producer: TransactionProducer) -> None:
        self._sent += 1
        name = f"m{self._sent}"
        body = name.encode() + b"." * self.chance.below(300)
        type_ = (SendType.DELAYED, SendType.TRANSACTION, *[SendType.PLAIN] * 8)[
            self.chance.below(10)
        ]
        if self.layout.moves_queues:
            type_ = SendType.PLAIN
        delay_level = 1 + self.chance.below(2) if type_ is SendType.DELAYED else 0
        message = Message(topic=TOPIC, body=body, keys=[name], delay_level=delay_level)
        send = self.history.sends[name] = Send(self.note(f"send {name} {type_.value}"), type_)
        try:
            if type_ is SendType.TRANSACTION:
                receipt = (await producer.send_in_transaction(message)).receipt
            else:
                receipt = await producer.send(message)
        except CometError as problem:
            self.note(f"failed {name} {type(problem).__name__} {problem}")
            return
        queue = receipt.queue
        position = queue.topic, queue.broker_name, queue.queue_id, int(receipt.queue_offset)
        send.ended = self.note(f"sent {name} {receipt.status.name} {position}")
        if receipt.status is SendStatus.SEND_OK:
            send.is_acknowledged = True
            is_known = type_ is SendType.PLAIN and receipt.queue_offset >= 0
            send.position = position if is_known else None
            if self.controllers:
                self._check_members(name, int(receipt.offset_message_id[-16:], 16))

    async def execute(self, message: Message, argument: object) -> LocalState:
        """Run the local transaction of a message; sometimes the broker has to ask later."""
        name = message.keys[0]
        send = self.history.sends[name]
        send.is_committed = self.chance.below(3) > 0 and not send.is_given_up
        self.note(f"{'commit' if send.is_committed else 'rollback'} {name}")
        return LocalState.UNKNOWN if self.chance.below(3) == 0 else send.state

    async def check(self, message: StoredMessage) -> LocalState:
        """Return how the local transaction ended; one that has not run never will."""
        self.note(f"check {message.keys[0]}")
        send = self.history.sends[message.keys[0]]
        send.is_given_up = not send.is_committed
        return send.state

    def replace_consumer(self, number: int) -> None:
        """Kill a consumer, and start another one on its machine."""
        consumer = self.consumers[number]
        self.note(f"kill {consumer.name}")
        consumer.die()
        self.consumers[number] = self._consumer(consumer.name, consumer.ip)

    def _consumer(self, name: str, ip: str) -> Process:
        self._started += 1
        process = self.process(name, ip)
        process.spawn(self._consume(process, f"instance-{self._started}"))
        return process

    async def _consume(self, process: Process, instance: str) -> None:
        consumer = PushConsumer(
            self.name_servers,
            group=GROUP,
            handler=self._handle,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
            client_ip=process.ip,
            instance_name=instance,
        )
        await consumer.start()

    async def _handle(self, message: StoredMessage) -> None:
        name = message.body.decode().rstrip(".")
        longest_s = 3.0 if self.chance.below(8) == 0 else 0.05
        await asyncio.sleep(self.chance.fraction() * longest_s)
        queue = message.queue
        position = queue.topic, queue.broker_name, queue.queue_id, int(message.queue_offset)
        self.history.handled[name].append(position)
        self.note(f"handled {name} {position}")


def simulate(seed: int, *, layout: Layout | None = None) -> History:
    """Run the world of a seed; return what happened, and what is wrong with it."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    random_state = random.getstate()
    random.seed(seed)
    collects = gc.isenabled()
    gc.disable()
    try:
        world = World(seed, layout=layout)
        with replaced(world.loop):
            return world.run()
    finally:
        random.setstate(random_state)
        logging.disable(level)
        if collects:
            gc.enable()
