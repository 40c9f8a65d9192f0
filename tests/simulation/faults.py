"""The faults of a simulated cluster under load; the seed chooses which happen, and when."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from cometmq.broker.replication.slave_connection import FIRST_REPORT_S
from simulation.layouts import LAYOUTS, Layout
from simulation.machines import HA_PORT, POWER_LOST, BrokerMachine, ControllerMachine, Machine
from simulation.strangers import Stranger
from support.controllers.etcd_model import Link

if TYPE_CHECKING:
    from simulation.world import World

DOWN_S_MAX = 3.0
PARTITION_S_MAX = 4.0
ISOLATED_S_MAX = 8.0
"""More than the heartbeat timeout of controllers here."""
SLOW_SYNC_S_MAX = 7.0
"""More than ``syncFlushTimeout``."""
JUMP_MS, LONG_JUMP_MS = 10_000, 7_200_000
LOOK_S = 0.05
REGISTERED_LOOKS_MAX = 60
"""How often, each `LOOK_S`, a fault of etcd looks whether all brokers are registered."""
STRANGER = "stranger: "
"""Precedes what a stranger does, in the counts."""
KEPT_OUT_S_MAX = FIRST_REPORT_S
"""For so long strangers may keep a slave from the log."""
Kind = Callable[["Faults"], Coroutine[Any, Any, "bool | None"]]
"""Lets a fault happen; returns False if it cannot happen now."""


class Faults:
    """Lets one fault after the other happen.

    Args:
        world: the simulated cluster.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._kinds = self.kinds(world.layout)
        turn = world.chance.seed // len(LAYOUTS) % len(self._kinds)
        self._first: Kind | None = self._kinds[turn]
        """What happens first: so the worlds of a layout have all kinds."""

    @classmethod
    def kinds(cls, layout: Layout) -> list[Kind]:
        """Return the faults of a cluster; those that stand there twice are likelier."""
        kinds = cls._all_kinds(layout)
        return [kind for kind in kinds if not layout.faults or kind.__name__ in layout.faults]

    @classmethod
    def counted(cls, layout: Layout) -> set[str]:
        """Return the names under which faults of a cluster are counted, without `STRANGER`."""
        return {kind.__name__ for kind in cls.kinds(layout)} | {POWER_LOST}

    @classmethod
    def _all_kinds(cls, layout: Layout) -> list[Kind]:
        kinds = [
            cls.kill_broker,
            cls.kill_broker,
            cls.power_cut,
            cls.power_cut,
            cls.kill_consumer,
            cls.kill_name_server,
            cls.cut_connections,
            cls.partition,
            cls.partition,
            cls.slow_network,
            cls.slow_disk,
            cls.clock_jump,
            cls.disk_error,
            cls.blackout,
            cls.stop_broker,
            cls.stranger,
            cls.stranger,
        ]
        if layout.controllers:
            kinds += [cls.kill_controller, cls.cut_etcd, cls.kill_master, cls.elect]
            kinds += [cls.isolate_master] * 2
            kinds += [cls.stall_log, cls.copy_store, cls.copy_in_place]
            kinds += [cls.empty_etcd, cls.restore_etcd, cls.put_back_store]
            kinds += [cls.empty_store, cls.empty_all_but_id]
        return kinds

    async def happen(self) -> None:
        """Let one fault happen, and count it, unless it cannot happen now."""
        kind = self._first or self._kinds[self._chance.below(len(self._kinds))]
        self._first = None
        if await kind(self) is not False:
            self._world.history.faults[kind.__name__] += 1

    def end(self) -> None:
        """End what lasts: the cluster is whole again, and fast."""
        world = self._world
        world.network.heal()
        world.network.slow_s = 0.0
        for machine in world.machines:
            if machine.process is not None:
                machine.process.slow_sync_s = 0.0

    # --- machines -------------------------------------------------------------------------------

    def _broker(self) -> BrokerMachine:
        brokers = self._world.brokers
        return brokers[self._chance.below(len(brokers))]

    async def _restart(self, *machines: Machine) -> None:
        """Start machines again after a while; sometimes the power fails during the start."""
        await asyncio.sleep(self._chance.fraction() * DOWN_S_MAX)
        for machine in machines:
            machine.start()
            if self._chance.below(4) == 0 and self._world.may_lose_power(machine):
                machine.cut_at_operation(1 + self._chance.below(60))
                await self._wait_for_death(machine)
                machine.crash(power=True)
                machine.start()

    async def _wait_for_death(self, machine: Machine) -> None:
        for _ in range(50):
            await asyncio.sleep(LOOK_S)
            if not machine.is_up:
                return

    async def kill_broker(self) -> None:
        """SIGKILL."""
        machine = self._broker()
        machine.crash(power=False)
        await self._restart(machine)

    async def power_cut(self) -> None:
        """At once, or at one of the next operations of the disk; or the process is killed."""
        machine = self._broker()
        if self._world.may_lose_power(machine) and self._chance.below(2):
            machine.cut_at_operation(1 + self._chance.below(40))
            await self._wait_for_death(machine)
        machine.crash(power=machine.disk.is_off or self._world.may_lose_power(machine))
        await self._restart(machine)

    async def blackout(self) -> None:
        """All machines of brokers fail at the same time."""
        machines = self._world.brokers
        for machine in machines:
            machine.crash(power=self._world.may_lose_power(machine))
        await self._restart(*machines)

    async def disk_error(self) -> None:
        """The disk refuses; then the operator starts the broker again on a disk that works."""
        machine, chance = self._broker(), self._chance
        code = (errno.EIO, errno.ENOSPC)[chance.below(2)]
        lasts = chance.below(2) == 1
        machine.refuse_at_operation(1 + chance.below(40), code, lasts=lasts)
        self._world.note(f"{errno.errorcode[code]} {machine.name}")
        await asyncio.sleep(chance.fraction() * DOWN_S_MAX)
        machine.crash(power=self._world.may_lose_power(machine) and chance.below(2) == 1)
        await self._restart(machine)

    async def slow_disk(self) -> None:
        """Syncs take seconds."""
        machine = self._broker()
        assert machine.process is not None
        self._world.note(f"slow disk {machine.name}")
        machine.process.slow_sync_s = SLOW_SYNC_S_MAX
        await asyncio.sleep(self._chance.fraction() * PARTITION_S_MAX)
        machine.process.slow_sync_s = 0.0

    async def clock_jump(self) -> None:
        """The wall clock of one process jumps."""
        processes = self._world.living()
        process = processes[self._chance.below(len(processes))]
        most_ms = LONG_JUMP_MS if self._chance.below(4) == 0 else JUMP_MS
        process.ahead_ms += self._chance.below(2 * most_ms) - most_ms
        self._world.latest_ahead_ms = max(self._world.latest_ahead_ms, process.ahead_ms)
        self._world.note(f"clock {process.name} {process.ahead_ms}")
        self._world.begin_term()

    async def kill_consumer(self) -> None:
        """Another member takes its place at once."""
        self._world.replace_consumer(self._chance.below(len(self._world.consumers)))

    async def kill_name_server(self) -> None:
        """A name server is gone for a while."""
        machines = self._world.name_server_machines
        machine = machines[self._chance.below(len(machines))]
        machine.crash(power=False)
        await asyncio.sleep(self._chance.fraction() * DOWN_S_MAX)
        machine.start()

    # --- elections ------------------------------------------------------------------------------

    def _master(self) -> BrokerMachine:
        """Return a broker that acts as a master, or else any broker."""
        world, chance = self._world, self._chance
        masters = [machine for machine in world.brokers if not machine.is_slave] or world.brokers
        return masters[chance.below(len(masters))]

    async def kill_master(self) -> None:
        """Another one is elected."""
        machine = self._master()
        machine.crash(power=self._world.may_lose_power(machine) and self._chance.below(2) == 1)
        await self._restart(machine)

    async def isolate_master(self) -> None:
        """Clients reach a master, but no other broker and no controller does, or not both ways."""
        world, chance, machine = self._world, self._chance, self._master()
        kind = chance.below(3)
        world.note(f"isolate {machine.name} {('sends', 'receives', 'both')[kind]}")
        for other in (*world.brokers, *world.controllers):
            if other is not machine and kind != 1:
                world.network.partition(machine.name, other.name)
            if other is not machine and kind != 0:
                world.network.partition(other.name, machine.name)
        await asyncio.sleep(chance.fraction() * ISOLATED_S_MAX)
        world.network.heal()

    async def elect(self) -> None:
        """An operator names the next master."""
        number = 1 + self._chance.below(len(self._world.brokers))
        self._world.note(f"elect {number}")
        self._world.operate(number)

    def _controller(self) -> ControllerMachine:
        controllers = self._world.controllers
        return controllers[self._chance.below(len(controllers))]

    async def kill_controller(self) -> None:
        """A controller is gone for a while."""
        machine = self._controller()
        machine.crash(power=False)
        await asyncio.sleep(self._chance.fraction() * DOWN_S_MAX)
        machine.start()

    async def cut_etcd(self) -> None:
        """A controller does not reach etcd, or receives no response from it."""
        machine = self._controller()
        link = (Link.NO_REQUEST, Link.NO_RESPONSE)[self._chance.below(2)]
        self._world.note(f"etcd {machine.name} {link.value}")
        machine.etcd.link = link
        await asyncio.sleep(self._chance.fraction() * PARTITION_S_MAX)
        machine.etcd.link = Link.UP

    # --- stores, and what etcd knows of them ------------------------------------------------------

    async def stop_broker(self) -> None:
        """A clean stop, after which any machine may lose its power, and a start."""
        machine = self._broker()
        await machine.stop(power=self._chance.below(2) == 1)
        await self._restart(machine)

    async def empty_store(self) -> bool:
        """The disk of a broker is replaced by an empty one; another member has all that it had.

        It gets another id, and an operator removes the old one.
        """
        return await self._empty(keeps_identity=False)

    async def empty_all_but_id(self) -> bool:
        """The store of a broker is gone, its id and names are not."""
        return await self._empty(keeps_identity=True)

    async def _empty(self, *, keeps_identity: bool) -> bool:
        world, machine = self._world, self._broker()
        names = machine.names
        if names is None or not world.has_copy(machine):
            return False
        if self._chance.below(2):
            await machine.stop(power=False)
        else:
            machine.crash(power=False)
        await asyncio.sleep(self._chance.fraction() * DOWN_S_MAX)
        if not world.has_copy(machine):
            machine.start()
            return False
        machine.empty(keeps_identity=keeps_identity)
        machine.start()
        if not keeps_identity:
            world.forget(names.broker_id)
        return True

    async def copy_store(self) -> None:
        """A copy of a store runs on another machine beside the original, and is lost for ever.

        If it registered before the original did, it may have led: then the original gets its disk.
        """
        machine = self._broker()
        copy = self._world.copy_of(machine)
        copy.start()
        await asyncio.sleep(self._chance.fraction() * ISOLATED_S_MAX)
        is_needed = not copy.is_slave
        copy.crash(power=False)
        if is_needed:
            machine.crash(power=False)
            machine.disk.put_back(copy.disk.image())
            await self._restart(machine)

    async def copy_in_place(self) -> None:
        """A slave ends, a copy of its store runs for a while, and then the original again.

        The original gets the disk of the copy if that one may have what no other broker has.
        """
        machine = self._broker()
        copy = self._world.copy_of(machine)
        machine.crash(power=False)
        copy.start()
        await asyncio.sleep(self._chance.fraction() * ISOLATED_S_MAX)
        is_needed = not copy.is_slave or all(each.is_slave for each in self._world.brokers)
        copy.crash(power=False)
        if is_needed:
            machine.disk.put_back(copy.disk.image())
        await self._restart(machine)

    async def put_back_store(self) -> bool:
        """A slave gets back what its disk had earlier, if another member has all that it had."""
        machine = self._broker()
        image = machine.disk.image()
        await asyncio.sleep(self._chance.fraction() * PARTITION_S_MAX)
        masters = [each for each in self._world.brokers if each.is_up and not each.is_slave]
        if not machine.is_up or not machine.is_slave or not masters:
            return False
        machine.crash(power=False)
        self._world.note(f"put back {machine.name}")
        await asyncio.sleep(self._chance.fraction() * DOWN_S_MAX)
        machine.disk.put_back(image)
        machine.start()
        return True

    async def _is_registered(self) -> bool:
        """Return whether etcd has all brokers now, or soon.

        A broker that registers in the emptied etcd belongs to another set, and one that registers
        after the backup has an id that the backup lacks. Both are refused until an operator acts,
        and a master of the other set acknowledges what no broker of the backup has.
        """
        for _ in range(REGISTERED_LOOKS_MAX):
            if self._world.is_registered():
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def empty_etcd(self) -> bool:
        """The broker sets are gone; perhaps others register; then a backup is restored.

        Of two others, the second one ends before, so that its id is free.
        """
        world = self._world
        if not await self._is_registered():
            return False
        backup = world.backup_etcd()
        world.note("etcd is emptied")
        world.clear_etcd()
        others = [world.newcomer(number) for number in range(self._chance.below(3))]
        for other in others:
            other.start()
            await asyncio.sleep(self._chance.fraction())
        if len(others) > 1:
            others.pop().crash(power=False)
        await asyncio.sleep(self._chance.fraction() * ISOLATED_S_MAX)
        for other in others:
            other.crash(power=False)
        world.restore_etcd(backup)
        world.note("etcd is restored")
        return True

    async def restore_etcd(self) -> bool:
        """etcd gets an older backup, while the brokers run.

        Perhaps a slave has left the in-sync set since, and an operator names it the next master,
        perhaps before the next heartbeat.
        """
        if not await self._is_registered():
            return False
        world, chance, master = self._world, self._chance, self._master()
        backup = world.backup_etcd()
        slaves = world.slaves_of(master) if chance.below(2) else []
        slave = slaves[chance.below(len(slaves))] if slaves else None
        if slave is not None:
            world.note(f"partition {master.name} {slave.name}")
            world.network.partition(master.name, slave.name)
            world.network.partition(slave.name, master.name)
        await asyncio.sleep(chance.fraction() * ISOLATED_S_MAX)
        world.restore_etcd(backup)
        world.note("etcd is restored from an older backup")
        if slave is not None:
            if (names := slave.names) is not None:
                await asyncio.sleep(chance.fraction() * DOWN_S_MAX)
                world.operate(names.broker_id)
                await asyncio.sleep(1.0)
            world.network.heal()
        return True

    # --- network --------------------------------------------------------------------------------

    async def stranger(self) -> None:
        """A hostile peer on the port of the log; a slave that was connected stays so.

        A slave that starts meanwhile is connected soon.
        """
        world, chance, master = self._world, self._chance, self._master()
        names = list(Stranger.kinds())
        kind = names[chance.below(len(names))]
        world.note(f"stranger at {master.name}: {kind}")
        world.history.faults[f"{STRANGER}{kind}"] += 1
        stranger = Stranger(world, master)
        world.strangers.append(stranger)
        hosts = master.connected_slaves()
        slaves = [each for each in world.slaves_of(master) if each.ip in hosts]
        process = master.process
        if slaves and chance.below(3) == 0:
            slave = slaves[chance.below(len(slaves))]
            slave.crash(power=False)
            slave.start()
        began_s = world.loop.now_s
        await stranger.stay(kind, began_s + chance.fraction() * PARTITION_S_MAX)

        def kept_out() -> list[str]:
            is_master = master.process is process and master.is_up and not master.is_slave
            here = master.connected_slaves()
            living = [s for s in slaves if is_master and s.is_up and s.is_slave]
            return [slave.name for slave in living if slave.ip not in here]

        while kept_out() and world.loop.now_s < began_s + KEPT_OUT_S_MAX:
            await stranger.stay(kind, world.loop.now_s + LOOK_S)
        if found := kept_out():
            world.history.failures.append(f"kept out: {found} by a stranger at {master.name}")

    async def stall_log(self) -> None:
        """Nothing passes on the connections of the log, though all else does."""
        self._world.note("stall the log")
        self._world.network.stalled_ports[HA_PORT] = None
        await asyncio.sleep(self._chance.fraction() * PARTITION_S_MAX)
        self._world.network.heal()

    async def cut_connections(self) -> None:
        """Connections are reset."""
        self._world.note("cut connections")
        self._world.network.cut_some()

    async def partition(self) -> None:
        """Two processes are partitioned, both ways or one way."""
        chance, names = self._chance, [process.name for process in self._world.living()]
        first = names.pop(chance.below(len(names)))
        second = names[chance.below(len(names))]
        there, back = (first, second), (second, first)
        for ends in ([there], [back], [there, back])[chance.below(3)]:
            self._world.note(f"partition {ends[0]} {ends[1]}")
            self._world.network.partition(*ends)
        await asyncio.sleep(chance.fraction() * PARTITION_S_MAX)
        self._world.network.heal()

    async def slow_network(self) -> None:
        """Some packets take up to a second from now on."""
        self._world.network.slow_s = self._chance.fraction()
