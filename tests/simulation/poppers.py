"""Consumers that pop: they acknowledge, put off and forget messages, and die with some in flight.

Two groups read the topic. The members of one pop from any queue; those of the other one in order.
They send the requests that clients send, batches of acknowledgements and ordered pops among them.
While there is load, routes are as old as those of clients; later, a failure looks for a new one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cometmq.client import StartFrom
from cometmq.client._connection.instance import ClientCore
from cometmq.client._pop.calls import PopRequests, ReceiptHandle, handles_of
from cometmq.client.filters import Filter
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.property_names import FIRST_POP_TIME
from cometmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.pop import PopMessageRequest, PopMessageResponse
from cometmq.protocol.lazy_record import decode_lazily
from simulation.kernel import Process
from simulation.machines import TOPIC

if TYPE_CHECKING:
    from simulation.world import World

GROUP, ORDERED = "poppers", "in-order"
MEMBERS = {GROUP: 2, ORDERED: 1}
INVISIBLE_MS = (1_500, 4_000)
PUT_OFF_MS = (0, 1_000, 6_000)
COUNTS = (1, 4, 16)
LIFE_S_MAX = 6.0
TRY_S = 3.0
"""The time limit of a request."""
HOLD_MS = 1_000
LATE_S = 5.0
"""So long after its invisible time, at most, a message is redelivered by a healthy cluster."""
KILLED = "popper_killed"
POP_FAULTS = {KILLED}
"""The names under which is counted what happens to members."""

_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
Key = tuple[str, ...]
"""What identifies a message that is not acknowledged: its position, or a pop of it."""
POSITION = 5
"""The length of a position."""


@dataclass(eq=False)
class Delivery:
    """One delivery of a message."""

    name: str
    handle: ReceiptHandle
    at_s: float
    """When its pop was sent."""
    expires_s: float
    """When it is redelivered at the latest, if it is never acknowledged."""
    term: tuple[int, ...]
    """See `World.term`."""
    keys: set[Key]
    is_of_old_master: bool
    """Whether a broker may have delivered it in whose place another one was elected."""
    acknowledged_s: float = 0.0
    """When its acknowledgement was answered."""
    is_ended: bool = False
    """Whether an acknowledgement may be stored."""
    beside: tuple[Delivery, ...] = ()
    """Deliveries of the same message by the other one of two masters."""

    @property
    def may_be_acknowledged(self) -> bool:
        """Whether the message may count as acknowledged.

        If the old master has delivered it, the new one does not know of that. It knows its own
        delivery, and redelivers nothing whose acknowledgement it has got.
        """
        return self.is_ended or any(each.is_ended for each in self.beside)


@dataclass
class Popped:
    """What a group was given."""

    delivered: set[str] = field(default_factory=set)
    open: dict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    """Deliveries by name of which no acknowledgement was sent."""
    in_order: set[str] = field(default_factory=set)
    """Names of which an acknowledgement in order was sent. It moves the offset of the group, so it
    may count for later deliveries, too: a master that is elected again may have got it before."""
    begun: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    """The term of each first pop of a message. A lost process may have stored a message once more
    for its redelivery, or lost the pop itself: then two of it are on their way, and the
    acknowledgement of one is none of the other."""
    settled: dict[Key, Delivery] = field(default_factory=dict)
    """Deliveries whose acknowledgement was answered by the process that had delivered them, and by
    the time of the first pop if that process was popped from then, too."""
    acknowledged: int = 0
    redelivered: int = 0


class Poppers:
    """The members of both groups.

    Args:
        world: the simulated cluster.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.healthy_s = float("inf")
        """Since when the cluster is healthy."""
        self.groups = {group: Popped() for group in MEMBERS}
        self._again: dict[str, str] = {}
        """What was delivered again, by the name of the message."""
        self._members: list[tuple[str, Process]] = []
        self._started = 0

    async def run(self) -> None:
        """Start the members, and kill one after the other while there is load."""
        world, chance = self.world, self.world.chance
        for group, count in MEMBERS.items():
            for _ in range(count):
                self._members.append(self._start(group))
        while world.has_load:
            await asyncio.sleep(0.2 + chance.fraction() * LIFE_S_MAX / len(self._members))
            number = chance.below(len(self._members))
            group, process = self._members[number]
            world.note(f"{KILLED} {process.name}")
            world.history.faults[KILLED] += 1
            process.die()
            self._members[number] = self._start(group)

    def _start(self, group: str) -> tuple[str, Process]:
        self._started += 1
        process = self.world.process(f"popper-{self._started}", self.world.new_ip())
        kind = OrderedMember if group == ORDERED else Member
        process.spawn(kind(self, process, group).run())
        return group, process

    def note_health(self, lagging: Sequence[str]) -> None:
        """Note which slaves lag, and which names lack a master, after the last fault.

        A slave may lag for a moment later, too, behind what members of the groups cause.
        """
        if not lagging:
            self.healthy_s = min(self.healthy_s, self.world.loop.now_s)
        elif not {*lagging}.isdisjoint(self.world.layout.masters):
            self.healthy_s = float("inf")

    # --- what is checked --------------------------------------------------------------------------

    def are_waiting(self) -> bool:
        """Return whether a message is to be delivered, or redelivered."""
        return any(
            self._missing(popped) or any(True for _ in self._open(popped))
            for popped in self.groups.values()
        )

    def _missing(self, popped: Popped) -> list[str]:
        sends = self.world.history.sends
        return [n for n, send in sends.items() if send.must_arrive and n not in popped.delivered]

    def _open(self, popped: Popped) -> Iterator[Delivery]:
        """Yield what has to be redelivered."""
        for name, deliveries in popped.open.items():
            for delivery in deliveries if name not in popped.in_order else ():
                if not delivery.may_be_acknowledged and self._must_return(delivery):
                    yield delivery

    def _must_return(self, delivery: Delivery) -> bool:
        """Return whether the message cannot be gone: a lost master may have had it alone."""
        send = self.world.history.sends[delivery.name]
        return not self.world.layout.loses_master or send.is_acknowledged

    def delivered(self, group: str, found: Delivery) -> None:
        """Note a delivery, and check it."""
        popped, history = self.groups[group], self.world.history
        name = found.name
        if name not in history.sends:
            history.failures.append(f"phantom: {name} was popped, and never sent")
            return
        for key in found.keys:
            settled = popped.settled.get(key)
            if settled is not None and found.at_s > settled.acknowledged_s:  # else it was late
                self._again[name] = (
                    f"again: {name} {found.handle.text} popped by {group} at {found.at_s:.6f},"
                    f" acknowledged as {settled.handle.text}"
                )
        popped.delivered.add(name)
        if found.handle.kind == "0":
            popped.begun.setdefault(_pop_key(name, found.handle), found.term)
        for earlier in popped.open.pop(name, ()):
            if found.is_of_old_master and earlier.is_of_old_master:
                found.beside = (*earlier.beside, earlier)
            if earlier.may_be_acknowledged:
                continue
            popped.redelivered += 1
            due_s = max(earlier.expires_s, self.healthy_s) + LATE_S
            is_late = group != ORDERED and self.world.loop.now_s > due_s  # others come first
            if self._must_return(earlier) and is_late:
                history.failures.append(
                    f"stuck: {name} {earlier.handle.text} popped by {group} was visible at"
                    f" {earlier.expires_s:.6f}, redelivered at {self.world.loop.now_s:.6f}"
                )
        popped.open[name].append(found)

    def acknowledged(self, group: str, delivery: Delivery, term: tuple[int, ...]) -> None:
        """Note that an acknowledgement was answered."""
        popped = self.groups[group]
        popped.acknowledged += 1
        delivery.acknowledged_s = self.world.loop.now_s
        is_late = self.world.loop.now_s >= delivery.at_s + delivery.handle.invisible_ms / 1000
        if term == delivery.term and not is_late:
            for key in delivery.keys:
                if len(key) == POSITION or popped.begun.get(key) == term:
                    popped.settled[key] = delivery

    def finish(self) -> Iterator[str]:
        """End the members; yield what was never delivered, and print what was."""
        for _, process in self._members:
            process.die()
        for name, text in self._again.items():
            if len({*self.world.history.handled[name]}) == 1:  # else its producer has sent it twice
                yield text
        for group, popped in self.groups.items():
            self.world.note(
                f"{group}: {popped.acknowledged} acknowledged, {popped.redelivered} redelivered"
            )
            for name in self._missing(popped):
                yield f"lost: {name} was acknowledged, and never popped by {group}"
            for delivery in self._open(popped):
                if self.world.loop.now_s > max(delivery.expires_s, self.healthy_s) + LATE_S:
                    yield (
                        f"stuck: {delivery.name} {delivery.handle.text} popped by {group} was"
                        f" visible at {delivery.expires_s:.6f}, and never redelivered"
                    )


class Member:
    """A member of a group.

    Args:
        poppers: all of them.
        process: in which it runs.
        group: of which it is a member.
    """

    is_ordered = False

    def __init__(self, poppers: Poppers, process: Process, group: str) -> None:
        self._poppers = poppers
        self._world = poppers.world
        self._chance = poppers.world.chance
        self._process = process
        self._group = group

    async def run(self) -> None:
        """Pop until the process dies."""
        settings = ClientSettings(client_ip=self._process.ip, instance_name=self._process.name)
        self._core = ClientCore(self._world.name_servers, settings=settings)
        self._requests = PopRequests(self._core, self._group, start=StartFrom.FIRST, timeout=TRY_S)
        await self._core.start()
        while True:
            for broker_name in self._world.layout.masters:
                try:
                    found = await self._pop(broker_name)
                    if found:
                        await self._settle(broker_name, found)
                except CometError as problem:
                    self._note(f"failed {type(problem).__name__} {problem}")
                    if not self._world.has_load or self._chance.below(2):
                        self._core.routes.forget(TOPIC)
                    await asyncio.sleep(0.1 + self._chance.fraction() * 0.2)
            await asyncio.sleep(self._chance.fraction() * 0.2)

    def _note(self, text: str) -> None:
        self._world.note(f"{self._process.name}: {text}")

    async def _address(self, broker_name: str) -> str:
        address = (await self._core.routes.find(TOPIC, timeout=TRY_S)).master(broker_name)
        if address is None:
            raise CometError(f"{broker_name} has no master")
        return address

    async def _pop(self, broker_name: str) -> list[Delivery]:
        chance, world = self._chance, self._world
        term, at_s = world.term(broker_name), world.loop.now_s
        had_two_masters = world.has_two_masters(broker_name)
        invisible_ms = INVISIBLE_MS[chance.below(2)]
        hold_ms = HOLD_MS * chance.below(2) if world.has_load else 0
        wanted = Filter()
        header = PopMessageRequest(
            consumer_group=self._group,
            topic=TOPIC,
            queue_id=-1,
            max_msg_nums=COUNTS[chance.below(len(COUNTS))],
            invisible_time=invisible_ms,
            poll_time=hold_ms,
            init_mode=0,
            exp_type=wanted.kind,
            exp=wanted.expression,
            order=self.is_ordered,
            bname=broker_name,
        )
        response = await self._core.brokers.call_raw(
            await self._address(broker_name),
            RequestCode.POP_MESSAGE,
            header,
            timeout=TRY_S + hold_ms / 1000,
        )
        if response.code in _NOTHING:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise ResponseError(response.code, response.remark or "")
        messages = decode_lazily(response.body, broker_name=broker_name)
        handles = handles_of(response.header(PopMessageResponse), messages, broker_name)
        found = []
        for message, handle in zip(messages, handles, strict=True):
            name = message.body.decode().rstrip(".")
            delivery = Delivery(
                name,
                handle,
                at_s,
                world.loop.now_s + invisible_ms / 1000,
                term,
                _keys(name, message, handle),
                had_two_masters or world.has_two_masters(broker_name),
            )
            self._note(f"popped {name} {handle.text}")
            self._poppers.delivered(self._group, delivery)
            found.append(delivery)
        return found

    async def _settle(self, broker_name: str, found: list[Delivery]) -> None:
        """Do one thing or another with what was popped."""
        chance = self._chance
        await asyncio.sleep(chance.fraction() * 0.3)
        if not self._world.has_load:
            await self._acknowledge_batch(broker_name, found)
            return
        if chance.below(3) == 0:
            part = found[: chance.below(len(found) + 1)]
            if part:
                await self._acknowledge_batch(broker_name, part)
            return
        for delivery in found:
            fate = chance.below(8)
            if fate == 0:
                continue  # it is forgotten
            if fate == 1:
                await self._put_off(delivery, PUT_OFF_MS[chance.below(len(PUT_OFF_MS))])
                continue
            if fate == 2:
                await self._put_off(delivery, INVISIBLE_MS[1])
            await self._acknowledge(delivery)

    async def _put_off(self, delivery: Delivery, invisible_ms: int) -> None:
        broker_name = delivery.handle.broker_name
        delivery.expires_s = max(
            delivery.expires_s, self._world.loop.now_s + 2 * TRY_S + invisible_ms / 1000
        )
        at_s, before = self._world.loop.now_s, delivery.handle
        delivery.handle = await self._requests.change_invisible_time(TOPIC, before, invisible_ms)
        now_s, term = self._world.loop.now_s, self._world.term(broker_name)
        self._note(f"put off {delivery.name} {delivery.handle.text}")
        key = _pop_key(delivery.name, delivery.handle)
        delivery.keys.add(key)
        self._poppers.groups[self._group].begun.setdefault(key, term)
        delivery.expires_s = now_s + invisible_ms / 1000
        if now_s >= delivery.at_s + before.invisible_ms / 1000 or term != delivery.term:
            delivery.term = ()  # it may have been visible before
        delivery.at_s = at_s

    async def _acknowledge(self, delivery: Delivery) -> None:
        delivery.is_ended = True
        await self._requests.ack(TOPIC, delivery.handle)
        self._acknowledged(delivery)

    def _acknowledged(self, delivery: Delivery) -> None:
        self._note(f"acknowledged {delivery.name} {delivery.handle.text}")
        term = self._world.term(delivery.handle.broker_name)
        self._poppers.acknowledged(self._group, delivery, term)

    async def _acknowledge_batch(self, broker_name: str, found: Sequence[Delivery]) -> None:
        bits: dict[tuple[str, ...], int] = defaultdict(int)
        for delivery in found:
            parts = delivery.handle.text.split(" ")
            start, pop_ms, invisible_ms, revive_queue, kind, _, queue_id, offset = parts
            bits[start, pop_ms, invisible_ms, revive_queue, kind, queue_id] |= 1 << (
                int(offset) - int(start)
            )
            delivery.is_ended = True
        body = BatchAckMessageRequestBody(broker_name=broker_name)
        for (start, pop_ms, invisible_ms, revive_queue, kind, queue_id), each in bits.items():
            body.acks.append(
                BatchAck(
                    consumer_group=self._group,
                    topic=TOPIC,
                    retry=kind,
                    start_offset=int(start),
                    queue_id=int(queue_id),
                    revive_queue_id=int(revive_queue),
                    pop_time=int(pop_ms),
                    invisible_time=int(invisible_ms),
                    bit_set=each.to_bytes(each.bit_length() // 8 + 1, "little"),
                )
            )
        await self._core.brokers.call(
            await self._address(broker_name),
            RequestCode.BATCH_ACK_MESSAGE,
            body=body.encode(),
            timeout=TRY_S,
        )
        for delivery in found:
            self._acknowledged(delivery)


class OrderedMember(Member):
    """A member of the group that pops in order, and acknowledges in that order."""

    is_ordered = True

    async def _acknowledge(self, delivery: Delivery) -> None:
        self._poppers.groups[self._group].in_order.add(delivery.name)
        await super()._acknowledge(delivery)

    async def _settle(self, broker_name: str, found: list[Delivery]) -> None:
        chance, world = self._chance, self._world
        await asyncio.sleep(chance.fraction() * 0.3)
        queues: dict[int, list[Delivery]] = defaultdict(list)
        for delivery in found:
            queues[delivery.handle.queue_id].append(delivery)
        for queued in queues.values():
            count = chance.below(len(queued) + 1) if world.has_load else len(queued)
            for delivery in queued[:count]:
                await self._acknowledge(delivery)
            if count < len(queued) and chance.below(3) == 0:
                delivery, put_off_ms = queued[count], PUT_OFF_MS[chance.below(len(PUT_OFF_MS))]
                delivery.expires_s = max(
                    delivery.expires_s, world.loop.now_s + 2 * TRY_S + put_off_ms / 1000
                )
                await self._requests.change_invisible_time(TOPIC, delivery.handle, put_off_ms)


def _keys(name: str, message: StoredMessage, handle: ReceiptHandle) -> set[Key]:
    """Return what identifies a delivered message, as far as its redelivery shows it."""
    first_ms = message.properties.get(FIRST_POP_TIME) if handle.kind != "0" else None
    position = name, handle.broker_name, handle.kind, str(handle.queue_id), str(handle.offset)
    first = (name, handle.broker_name, first_ms) if first_ms else _pop_key(name, handle)
    return {position, first}


def _pop_key(name: str, handle: ReceiptHandle) -> Key:
    return name, handle.broker_name, str(handle.pop_time_ms)
