"""Simulated replicas of one log: masters are elected, cut off, killed, and come back.

The stores, the epoch files, the names and both sides of the replication are the product's; so are
what a send waits for, and the controller's rules of a broker set. What carries them is a model, as
is the life cycle of a broker: a master learns of its successor late, requests for another in-sync
set are lost, and so are their responses. Some stores are put back as they were earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.failover.epochs.epoch_file import Epoch, EpochFile
from cometmq.broker.failover.epochs.in_sync import BrokerIds, InSyncSet
from cometmq.broker.failover.epochs.replication import EpochError, EpochReplication
from cometmq.broker.failover.identity import StoreIdentity, StoreIdentityFile
from cometmq.broker.replication.greeting import SlaveNames, greeting_of
from cometmq.broker.role import MASTER_ID, SLAVE, SYNC_MASTER, Role
from cometmq.controller import broker_set
from cometmq.controller.broker_set import NO_ID, BrokerSet, Candidate, Names
from cometmq.controller.broker_set import Replica as Registered
from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.store import MessageStore
from simulation.kernel import Process, SimulatedLoop
from simulation.machines import Disk, SimulatedCommit
from simulation.network import Network
from simulation.replacements import replaced
from support.checks.randomness import SeededRandomness
from support.stores.power_files import PowerCutError
from support.stores.small_stores import TOPIC, all_messages, put, small_settings, split

PORT = 10912
SETTLE_S = 120.0
"""How long, in virtual time, replicas have to become equal once all faults are over."""
REQUEST_S = 0.5
"""The timeout of a request."""


SET_ID = "a" * 32


class Controller:
    """Keeps the broker set, by the product's rules.

    Args:
        world: with the replicas.
        renews: whether it gives a new epoch to a set that is in force, as RocketMQ's does not.
    """

    def __init__(self, world: Elections, *, renews: bool) -> None:
        self._world = world
        self._renews = renews
        replicas = {n: Registered(f"10.0.0.{n}:10911", f"{n}") for n in (1, 2, 3)}
        self.known = BrokerSet(cluster="c", name="n", set_id=SET_ID, last_id=3, replicas=replicas)

    @property
    def epoch(self) -> int:
        return self.known.master_epoch

    @property
    def master(self) -> int | None:
        return self.known.master_id

    @property
    def members(self) -> BrokerIds:
        return frozenset(self.known.in_sync)

    @property
    def living_master(self) -> Replica | None:
        """The process that was elected, if it lives."""
        master = self.known.master_id
        if master is None:
            return None
        replica = self._world.replicas[master - 1]
        is_elected = self.known.master_incarnation in ("", replica.incarnation)
        return replica if is_elected and master in self._living() else None

    def _living(self) -> dict[int, Candidate]:
        """The processes that hold their ids."""
        return {
            replica.number: replica.candidate
            for replica in self._world.replicas
            if replica.is_alive
            and replica.incarnation
            and self.known.replicas[replica.number].incarnation in ("", replica.incarnation)
        }

    def register(self, replica: Replica, names: StoreIdentity) -> None:
        """Take a process as the holder of its id."""
        found = Names(names.store_id, names.incarnation, names.earlier, names.stopped_cleanly)
        self.known = broker_set.register(
            *(self.known, "n", replica.number, f"{replica.ip}:10911"),
            set_id=names.set_id,
            names=found if self._world.has_names else None,
        )

    def alter(
        self,
        sender: int,
        incarnation: str,
        epoch: int,
        in_sync_epoch: int,
        members: BrokerIds,
        compared: dict[int, str],
    ) -> bool:
        """Take another in-sync set; return False if it is refused."""
        living = self._living()
        try:
            self.known = broker_set.alter_in_sync(
                self.known,
                broker_set.InSyncRequest(
                    wanted=sorted(members),
                    master_id=sender,
                    master_epoch=epoch,
                    in_sync_epoch=in_sync_epoch,
                    renews=self._renews,
                    incarnation=incarnation if self._world.has_names else "",
                    compared=compared,
                ),
                is_alive=lambda number: number in living or number in self.members,
            )
        except ResponseError:
            return False
        return True

    def lost(self, replica: Replica) -> None:
        """Count a master as lost that cannot lead, and elect again."""
        living = self._living()
        living.pop(replica.number, None)
        self.known = broker_set.elect(self.known, living, asker=NO_ID).after
        self.elect()

    def elect(self, wanted: int | None = None, *, unclean: bool = False) -> None:
        """Elect a living member of the in-sync set, if there is one; any may be the first.

        Args:
            wanted: the one to elect, if it can be.
            unclean: whether an operator lets the largest log be elected, whatever its state.
        """
        living = self._living()
        able = [number for number in living if not self.epoch or number in self.members]
        others = [number for number in able if number != self.master] or able
        if not living:
            return
        asker = others[self._world.chance.below(len(others))] if others else NO_ID
        if wanted in others:
            asker = wanted
        election = broker_set.elect(self.known, living, asker=asker, designated=True)
        if election.after == self.known and self.living_master is None:
            election = broker_set.elect(self.known, living, asker=NO_ID, unclean=unclean)
        if election.after == self.known:
            return
        self.known = election.after
        self._world.note(f"elected {self.master} epoch {self.epoch}")
        for replica in self._world.replicas:
            replica.notify()


class Replica:
    """A machine with a broker's log."""

    def __init__(self, world: Elections, number: int) -> None:
        self.world = world
        self.number = number
        self.ip = f"10.0.0.{number}"
        self.disk = Disk(world.chance)
        self.process: Process | None = None
        self.store: MessageStore
        self.epochs: EpochFile
        self.replication: EpochReplication
        self.role: Role
        self.read_to = 0
        """The queue offset up to which a reader has read."""
        self.incarnation = ""
        """That of the process, once it has registered."""
        self.names: StoreIdentity
        self.image: dict[Path, bytes] | None = None
        """The disk at an earlier time."""
        self._known = 0
        self._changed = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        return self.process is not None and not self.process.is_dead

    @property
    def leads(self) -> bool:
        """Whether it acts as the master; the controller may have elected another one."""
        return self.is_alive and not self.role.is_slave

    @property
    def candidate(self) -> Candidate:
        """What its heartbeat says of its log."""
        log_end = self.store.written_to
        return Candidate(self.epochs.number_at(log_end), log_end)

    def start(self) -> None:
        """Boot; a controller without a master elects."""
        self.process = process = Process(self.world.loop, f"replica-{self.number}", self.ip)
        process.on_death.append(lambda: self.world.died(process))
        self.disk.process = process
        self._changed = asyncio.Event()
        self._known = 0
        self.incarnation = ""
        self.role = Role(SLAVE, self.number)
        self.world.note(f"start {self.number}")
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        world = self.world
        root = Path(f"/{self.number}")
        flush = "SYNC_FLUSH" if world.syncs else "ASYNC_FLUSH"
        self.store = store = MessageStore(
            small_settings(root, flush_disk_type=flush, commit_log_file_bytes=4096),
            clock=process,  # type: ignore[arg-type]
            files=self.disk,
            confirms=world.settings.all_ack_in_sync_state_set,
        )
        store.open()
        self.epochs = EpochFile(root, self.disk)
        commit = SimulatedCommit(store)
        commit.start()
        self.replication = EpochReplication(
            self.role,
            store,
            lambda: world.settings,
            self.epochs,
            send_request=self._ask,
            commit=commit,
            sync_flush=world.syncs,
            clock=process,  # type: ignore[arg-type]
            before_truncation=lambda offset: world.note(f"truncated {self.number} {offset}"),
        )
        self.role.on_change(self.replication.master.role_changed)
        self.role.on_change(self.replication.copy.role_changed)
        self.durability = DurabilityWait(
            commit if world.syncs else None, self.replication.acknowledgements
        )
        await self.replication.master.start(self.ip, PORT)
        self.replication.copy.start(introduction=self)  # type: ignore[arg-type]
        names = StoreIdentityFile(root, self.disk)
        self.names = names.begin(has_id=True, stopped_cleanly=store.was_closed)
        world.controller.register(self, self.names)
        names.registered(SET_ID)
        self.replication.set_id, self.replication.verifies = SET_ID, world.has_names
        self.incarnation = self.names.incarnation
        if world.controller.living_master is None:
            world.controller.elect()
        self.notify()
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._take_role()

    async def greeting(self, address: str) -> bytes:
        """Return the greeting for a master, which responds if the network lets it."""
        world, process = self.world, self.process
        master = next(each for each in world.replicas if address == f"{each.ip}:{PORT}")
        if not world.has_names or not master.is_alive or not master.incarnation:
            return b""
        await asyncio.sleep(world.network.delay_s())
        ways = (process, master.process), (master.process, process)
        if any(world.network.is_partitioned(*way) for way in ways):  # type: ignore[arg-type]
            return b""
        names = SlaveNames(self.number, SET_ID, self.names.store_id, self.names.incarnation)
        return greeting_of(names, master.replication.master.tickets.give(names))

    # --- the life cycle -------------------------------------------------------------------------

    def notify(self) -> None:
        """Let it know of the last election, after a while."""
        if self.process is not None and self.is_alive:
            late_s = (0.01, 0.5, 3.0)[self.world.chance.below(3)] * self.world.chance.fraction()
            self.world.loop.call_later(late_s, self._changed.set, context=self.process.context)

    async def _take_role(self) -> None:
        controller = self.world.controller
        epoch, master = controller.epoch, controller.master
        if master is None or epoch <= self._known:
            return
        if master != self.number:
            self._known = epoch
            self.role.change(SLAVE, self.number)
            self.replication.follow(self.number, f"10.0.0.{master}:{PORT}")
            return
        if controller.living_master is not self:
            return
        try:
            await self.replication.lead(
                self.number, epoch, controller.members, controller.known.in_sync_epoch
            )
        except EpochError:
            self.world.note(f"cannot lead {self.number} epoch {epoch}")
            if controller.epoch == epoch:
                controller.lost(self)
            return
        if controller.epoch == epoch:
            self._known = epoch
            self.role.change(SYNC_MASTER, MASTER_ID)
        else:
            self.replication.stop()

    def _ask(self, members: BrokerIds) -> None:
        in_sync = self.replication.in_sync
        if self.world.is_over:
            return
        assert self.process is not None
        assert in_sync is not None
        self.process.spawn(self._request(in_sync, in_sync.in_sync_epoch, self.epochs.last, members))

    async def _request(
        self, in_sync: InSyncSet, in_sync_epoch: int, epoch: int, members: BrokerIds
    ) -> None:
        chance, controller = self.world.chance, self.world.controller
        compared = self.replication.incarnations(members)
        request = self.number, self.incarnation, epoch, in_sync_epoch, members, compared
        if chance.below(8) == 0:  # the request is lost, or arrives after its timeout
            late_s = REQUEST_S * (1 + chance.fraction() * 5)
            self.world.loop.call_later(
                late_s,
                *(controller.alter, *request),
                context=contextvars.Context(),  # it outlives the process that has sent it
            )
            await asyncio.sleep(REQUEST_S)
            self._if_asked(in_sync, lambda: self.replication.unanswered(in_sync_epoch))
            return
        await asyncio.sleep(chance.fraction() * 0.05)
        is_taken = controller.alter(*request)
        answer = controller.members, controller.known.in_sync_epoch
        if chance.below(8) == 0:
            await asyncio.sleep(REQUEST_S)
            self._if_asked(in_sync, lambda: self.replication.unanswered(in_sync_epoch))
            return
        await asyncio.sleep(chance.fraction() * 0.05)
        if is_taken:
            self._if_asked(in_sync, lambda: self.replication.verified(compared))
            self._if_asked(in_sync, lambda: self.replication.adopt(*answer))
        else:
            self._if_asked(in_sync, lambda: self.replication.refused(in_sync_epoch))

    def _if_asked(self, in_sync: object, call: Callable[[], None]) -> None:
        """Say what became of a request, unless this broker has another role since."""
        if self.replication.in_sync is in_sync:
            call()

    def poll(self) -> None:
        """Take the in-sync set of the controller, as brokers do every few seconds."""
        controller = self.world.controller
        if self.process is None or self.process.is_dead:
            return
        if not self.incarnation:
            return
        if controller.epoch > self._known:
            self._changed.set()
        elif controller.master == self.number and self.epochs.last == controller.epoch:
            self.process.context.run(
                self.replication.adopt, controller.members, controller.known.in_sync_epoch
            )

    # --- faults ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the process cleanly: all of its store is on the disk."""
        assert self.process is not None
        if self.incarnation:
            self.world.note(f"stop {self.number}")
            with contextlib.suppress(StoreError):
                self.process.context.run(self.store.close)
        self.die(power=False)

    def take_image(self) -> None:
        """Keep what the disk has."""
        self.image = self.disk.image()

    def put_back(self) -> None:
        """Put back what the disk had earlier, while the process is down: a restored backup."""
        if self.image is not None:
            self.world.note(f"put back {self.number}")
            self.disk.put_back(self.image)

    def die(self, *, power: bool) -> None:
        """Kill the process; with ``power`` the disk loses what was not synced."""
        assert self.process is not None
        self.world.note(f"{'power' if power else 'kill'} {self.number}")
        self.process.die()
        self.disk.process = None
        if power:
            self.disk.power_on()
        else:
            self.disk.kill()


class Elections:
    """One run.

    Args:
        seed: of all choices.
        acks_all: the setting allAckInSyncStateSet.
        least: the setting minInSyncReplicas.
        syncs: whether the disks sync before anything is acknowledged; then they may lose power.
        loses_power: whether they may lose power all the same, one at a time.
        puts_back: whether stores are put back as they were earlier, one at a time.

    In the last two cases all processes fail at once now and then.

    Every second controller is as RocketMQ's, which renews no in-sync sets and knows no names,
    unless stores lose what was acknowledged.
    """

    def __init__(
        self,
        seed: int,
        *,
        acks_all: bool = True,
        least: int = 1,
        syncs: bool = False,
        loses_power: bool = False,
        puts_back: bool = False,
    ) -> None:
        self.chance = SeededRandomness(seed)
        self.loop = SimulatedLoop(self.chance)
        self.network = Network(self.loop)
        self.syncs = syncs
        self._loses_power = syncs or loses_power
        self._puts_back = puts_back
        self._fails_at_once = loses_power or puts_back
        self._keeps_all_seen = acks_all and not (loses_power or puts_back)
        """Whether no reader may see what is lost later: a master that is the only member shows what
        it does not acknowledge, and may lose that with its store."""
        self.has_names = seed % 2 == 0 or loses_power or puts_back
        self.settings = replace(
            BrokerSettings(),
            all_ack_in_sync_state_set=acks_all,
            min_in_sync_replicas=least,
            ha_transfer_batch_size=512,
        )
        self.controller = Controller(self, renews=self.has_names)
        self.replicas: list[Replica] = []
        self.lines: list[str] = []
        self.acknowledged: dict[bytes, int] = {}
        """The bodies of acknowledged messages, and their queue offsets."""
        self.seen: dict[int, bytes] = {}
        """What readers have seen at each queue offset."""
        self.failures: list[str] = []
        self.truncated = 0
        self._processes: list[Process] = []
        self._sent = 0
        self.is_over = False

    def note(self, line: str) -> None:
        """Add a line to the history."""
        self.truncated += line.startswith("truncated")
        self.lines.append(f"{self.loop.now_s:.6f} {line}")

    def died(self, process: Process) -> None:
        """Cut the connections of a process; elect another master if it was that."""
        self._processes.append(process)
        self.network.process_died(process)
        if self.is_over:
            return
        self.loop.call_soon(self.loop.forget, process)
        self.loop.call_later(self.chance.fraction() * 2, self._elect_if_gone)

    def _elect_if_gone(self) -> None:
        if self.controller.living_master is None:
            self.controller.elect()

    def run(self) -> list[str]:
        """Run until the end; return what is wrong."""
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with replaced(self.loop):
                try:
                    self.loop.run_until_complete(self._direct())
                finally:
                    self._close()
        finally:
            logging.disable(level)
        return self.failures + self.loop.failures

    def _close(self) -> None:
        self.is_over = True
        for replica in self.replicas:
            if replica.process is not None:
                replica.process.die()
            replica.disk.cut_at = 0
        self.loop.end_tasks()
        for task in self.loop.kept:
            if not task.cancelled():
                task.exception()
        self.loop.close()

    async def _direct(self) -> None:
        self.replicas += [Replica(self, number) for number in (1, 2, 3)]
        for replica in self.replicas:
            replica.start()
            await asyncio.sleep(0.1)
        for _ in range(6 + self.chance.below(8)):
            await self._load(0.05 + self.chance.fraction() * 1.5)
            await self._break()
        self.network.heal()
        await self._settle()

    async def _load(self, seconds: float) -> None:
        """Send to each broker that acts as a master, and read everywhere, for a while."""
        until_s = self.loop.now_s + seconds
        while self.loop.now_s < until_s:
            for replica in self.replicas:
                if replica.leads and self.chance.below(2):
                    self._send(replica)
                if self.chance.below(4) == 0:
                    self._read(replica)
            if self.chance.below(5) == 0:
                for replica in self.replicas:
                    replica.poll()
            await asyncio.sleep(self.chance.fraction() * 0.1)

    def _send(self, replica: Replica) -> None:
        if replica.durability.refusal is not None:
            return
        self._sent += 1
        body = b"m%d" % self._sent + b"." * self.chance.below(200)
        try:
            stored = put(replica.store, body)
        except StoreError as problem:
            self.failures.append(f"{replica.number} does not store: {problem}")
            return
        except PowerCutError:
            return
        least = self.settings.min_in_sync_replicas

        def on_outcome(code: int, error: StoreError | None) -> None:
            if code == ResponseCode.SUCCESS and error is None and not self.is_over:
                in_sync = replica.replication.in_sync
                if in_sync is None or in_sync.least_count < least:
                    self.failures.append(f"{body!r} acknowledged with too few members")
                self.acknowledged[body] = stored.queue_offset

        def wait() -> None:
            replica.durability.wait(stored.log_offset + stored.size_bytes, on_outcome)

        assert replica.process is not None
        replica.process.context.run(wait)

    def _read(self, replica: Replica) -> None:
        if not replica.is_alive:
            return
        store = replica.store
        low, high = store.bounds(TOPIC, 0)
        replica.read_to = min(max(replica.read_to, low), high)
        found = store.get(TOPIC, 0, replica.read_to, 32)
        messages = split(b"".join(found.slices))
        expected = list(range(replica.read_to, found.next_begin_offset))
        if [message.queue_offset for message in messages] != expected:
            self.failures.append(f"{replica.number} leaves out one of {expected}")
        replica.read_to = found.next_begin_offset
        for message in messages:
            known = self.seen.setdefault(message.queue_offset, message.body)
            if known != message.body and self._keeps_all_seen:
                self.failures.append(
                    f"{self.loop.now_s:.6f} {replica.number} shows {message.body!r} at"
                    f" {message.queue_offset}, readers have seen {known!r}"
                )

    async def _break(self) -> None:
        self._elect_if_gone()  # those for which an election has waited may be back
        replica = self.replicas[self.chance.below(3)]
        if self._puts_back and self.chance.below(4) == 0:
            replica.take_image()
        more = self.chance.below(6)
        if more == 0 and self._fails_at_once:
            await self._fail_at_once()
        elif more == 1 and replica.is_alive:
            replica.stop()
            await self._load(self.chance.fraction() * 3)
            replica.start()
        kind = self.chance.below(6)
        if kind <= 1 and replica.is_alive:
            power = self._loses_power and kind == 1 and self._has_copy(replica)
            if power and self.chance.below(2):  # at one of its next operations
                replica.disk.cut_at = replica.disk.operations + 1 + self.chance.below(40)
                await self._load(0.5)
            has_copy = self._has_copy(replica)
            replica.die(power=power)
            await self._load(self.chance.fraction() * 3)
            if self._puts_back and has_copy and self.chance.below(2):
                replica.put_back()
            replica.start()
        elif kind == 2:
            self.controller.elect(1 + self.chance.below(3))
        elif kind == 3:
            self.network.cut_some()
        elif kind == 4:
            names = [f"replica-{number}" for number in (1, 2, 3)]
            del names[self.chance.below(3)]
            for way in ([names], [names[::-1]], [names, names[::-1]])[self.chance.below(3)]:
                self.network.partition(*way)
            await self._load(self.chance.fraction() * 6)
            self.network.heal()
        else:
            await self._load(self.chance.fraction() * 4)

    def _has_copy(self, replica: Replica) -> bool:
        """Whether another living member has what a replica may lose with its power."""
        members = self.controller.members - {replica.number}
        return self.syncs or any(self.replicas[number - 1].is_alive for number in members)

    async def _fail_at_once(self) -> None:
        """All processes end, one of them loses a part of its store, and returns first."""
        replicas = sorted(self.replicas, key=lambda _: self.chance.fraction())
        first, has_copy = replicas[0], self._has_copy(replicas[0])
        for replica in replicas:
            if replica.is_alive:
                replica.die(power=replica is first and has_copy and self._loses_power)
        for replica in replicas:
            if replica is first and has_copy and self._puts_back:
                replica.put_back()
            replica.start()
            await self._load(self.chance.fraction() * 3)

    async def _settle(self) -> None:
        until_s = self.loop.now_s + SETTLE_S
        while not self._is_equal():
            if self.controller.living_master is None and until_s - self.loop.now_s < SETTLE_S / 2:
                self.controller.elect(unclean=True)
            if self.loop.now_s > until_s:
                self.failures.append(f"the replicas do not become equal: {self._state()}")
                return
            self._elect_if_gone()
            for replica in self.replicas:
                replica.poll()
            await asyncio.sleep(1.0)
        self._check()

    def _is_equal(self) -> bool:
        master = self.controller.master
        if master is None or not all(replica.is_alive for replica in self.replicas):
            return False
        lead = self.replicas[master - 1]
        return (
            lead.leads
            and lead.epochs.last == self.controller.epoch
            and len(self.controller.members) == len(self.replicas)
            and all(r.store.written_to == lead.store.written_to for r in self.replicas)
            and all(r.store.readable_to == lead.store.written_to for r in self.replicas)
            and all(written(r.epochs.epochs) == written(lead.epochs.epochs) for r in self.replicas)
        )

    def _state(self) -> list[object]:
        controller = self.controller
        return [
            (controller.master, controller.epoch, sorted(controller.members)),
            *(
                (r.number, r.role.name, r.store.written_to, r.store.readable_to, r.epochs.epochs)
                for r in self.replicas
            ),
        ]

    def _check(self) -> None:
        master = self.controller.master
        assert master is not None
        lead = self.replicas[master - 1]
        found = {message.queue_offset: message.body for message in all_messages(lead.store)}
        for replica in self.replicas:
            if log_of(replica.store) != log_of(lead.store):
                self.failures.append(f"the log of {replica.number} differs from the master's")
            if found != {m.queue_offset: m.body for m in all_messages(replica.store)}:
                self.failures.append(f"the queue of {replica.number} differs from the master's")
        if not self.settings.all_ack_in_sync_state_set:
            return
        lost = [body for body, at in self.acknowledged.items() if found.get(at) != body]
        if lost:
            self.failures.append(f"{len(lost)} acknowledged messages are lost: {lost[:3]}")
        changed = [at for at, body in self.seen.items() if found.get(at) != body]
        if changed and self._keeps_all_seen:
            self.failures.append(f"readers have seen others at the queue offsets {changed[:3]}")


def written(epochs: list[Epoch]) -> list[Epoch]:
    """Return the epochs that have bytes, and the last one: others may be unknown to replicas."""
    behind = [epoch.start for epoch in epochs[1:]] + [-1] * bool(epochs)
    return [epoch for epoch, start in zip(epochs, behind, strict=True) if epoch.start != start]


def log_of(store: MessageStore) -> bytes:
    """Return the whole log."""
    found = bytearray()
    while (data := store.log_bytes(store.min_log_offset + len(found), 1 << 20)) is not None:
        found += data
    return bytes(found)
