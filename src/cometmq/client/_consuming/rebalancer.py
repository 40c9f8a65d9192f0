"""Rebalances a group: allocates the queues of topics to this member, and notifies its listener.

`rebalancer_states` has the states of each topic.

Source: RebalanceImpl, RebalanceService and MessageQueueListener, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple, TypeVar

from cometmq.client._callbacks import Caller
from cometmq.client._connection.instance import ClientCore, MemberList
from cometmq.client._connection.routes import Route
from cometmq.client._consuming.rebalancer_states import TABLE, Action, Event, State
from cometmq.client._supervision import (
    JITTER,
    LOOP_BACK_OFF_S_MAX,
    PeriodicLoop,
    SupervisedFailureLog,
)
from cometmq.client.allocation import AllocationError, AllocationStrategy, QueueOwner
from cometmq.client.errors import TopicNotFoundError
from cometmq.client.handlers import QueueListener
from cometmq.model.errors import CometError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import raise_unless_failure

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOKUPS_MAX = 60
"""How often a missing topic is looked up, each second, before the regular rounds do it: a consumer
may start before the first send."""
RETRY_S = 10.0
"""Seconds until the listener is called again after it raised."""

_Arguments = tuple[list[MessageQueue], list[MessageQueue]]


class QueueListenerCalls:
    """Calls the listener of one consumer, for a limited time.

    A call that fails is logged and repeated, unless a newer assignment of the topic follows.

    Args:
        listener: called with a topic, its queues, and the assigned ones; None calls nothing.
        instance: the instance of the consumer.
        group: the consumer group, without a namespace.
        tasks: runs the calls of changed routes and the retries.
    """

    def __init__(
        self,
        listener: QueueListener | None,
        instance: ClientCore,
        group: str,
        tasks: Supervisor,
    ) -> None:
        self._listener = listener
        self._instance = instance
        self._tasks = tasks
        self._caller = Caller(1, f"queues-{group}")
        self._calling = asyncio.Lock()
        self._failed: dict[str, _Arguments] = {}
        """The assignments for which the listener raised, by topic."""
        self._failures = SupervisedFailureLog(
            log,
            fails="on_queues callback failed, retrying",
            works="on_queues callback succeeds again",
            name="topic",
            more=f"group={group}",
        )
        self._retries: PeriodicLoop | None = None

    async def call(
        self, topic: str, queues: Collection[MessageQueue], assigned: Collection[MessageQueue]
    ) -> None:
        """Call the listener. Names are as on brokers."""
        if self._listener is None:
            return
        unwrap = self._instance.namespace.unwrap_queue
        async with self._calling:
            await self._call(topic, (list(map(unwrap, queues)), list(map(unwrap, assigned))))

    async def _call(self, topic: str, arguments: _Arguments) -> None:
        assert self._listener is not None
        self._failed.pop(topic, None)
        name = self._instance.namespace.unwrap(topic)
        try:
            await self._caller.notify(self._listener, name, *map(list, arguments))
        except BaseException as error:
            raise_unless_failure(error)
            self._failures.failed(topic, error)
            self._failed[topic] = arguments
            if self._retries is None:
                self._retries = PeriodicLoop(
                    "on-queues", "*", self._failures, self._retry,
                    interval_s=RETRY_S, first_s=RETRY_S,
                )  # fmt: skip
                self._retries.start(self._tasks)
        else:
            self._failures.succeeded(topic)

    async def _retry(self) -> None:
        for topic, arguments in list(self._failed.items()):
            async with self._calling:
                if self._failed.get(topic) is arguments:
                    await self._call(topic, arguments)

    def close(self) -> None:
        """Start no further call."""
        if self._retries is not None:
            self._retries.cancel()
        self._caller.close()


class QueueTable(dict[MessageQueue, T]):
    """A consumer's values by assigned queue, which also finds the queues of a topic.

    A rebalance asks for the queues of each topic: with thousands of topics, going through all
    queues each time would take minutes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_topic: dict[str, dict[MessageQueue, None]] = {}

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic."""
        return list(self._by_topic.get(topic, ()))

    def __setitem__(self, queue: MessageQueue, value: T) -> None:
        super().__setitem__(queue, value)
        self._by_topic.setdefault(queue.topic, {})[queue] = None

    def remove(self, queue: MessageQueue) -> T | None:
        """Remove a queue, and return what was there; None if it was not there."""
        if queue not in self:
            return None
        queues = self._by_topic[queue.topic]
        del queues[queue]
        if not queues:
            del self._by_topic[queue.topic]
        return self.pop(queue)

    def remove_all(self) -> None:
        """Remove all queues."""
        self.clear()
        self._by_topic.clear()


class KnownQueues:
    """The queues of topics, to detect changes."""

    def __init__(self) -> None:
        self._queues: dict[str, frozenset[MessageQueue]] = {}

    def look(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Record the queues of a topic."""
        self._queues[topic] = frozenset(queues)

    def differs(self, route: Route) -> bool:
        """Return whether a recorded topic has other queues in this route, and record these."""
        known, now = self._queues.get(route.topic), frozenset(route.read_queues)
        if known is None or known == now:
            return False
        self._queues[route.topic] = now
        return True


class RouteListenerCalls(QueueListenerCalls):
    """Calls the listener also when the queues of a topic change.

    Args:
        listener, instance, group, tasks: as for `QueueListenerCalls`.
        assigned: returns the consumer's queues.
    """

    def __init__(
        self,
        listener: QueueListener | None,
        instance: ClientCore,
        group: str,
        *,
        assigned: Callable[[], Collection[MessageQueue]],
        tasks: Supervisor,
    ) -> None:
        super().__init__(listener, instance, group, tasks)
        self._assigned = assigned
        self._known = KnownQueues()
        self.look = self._known.look

    def start(self) -> None:
        """Call the listener for changed routes."""
        if self._route_changed not in self._instance.routes.on_change:
            self._instance.routes.on_change.append(self._route_changed)

    def stop(self) -> None:
        """Call the listener for changed routes no longer."""
        if self._route_changed in self._instance.routes.on_change:
            self._instance.routes.on_change.remove(self._route_changed)

    def close(self) -> None:
        """Start no further call."""
        self.stop()
        super().close()

    def _route_changed(self, route: Route) -> None:
        assigned = [queue for queue in self._assigned() if queue.topic == route.topic]
        if self._known.differs(route):
            self._tasks.spawn(self.call(route.topic, route.read_queues, assigned), "on-queues")
        elif assigned:
            self.look(route.topic, route.read_queues)


Allocate = Callable[[str, list[MessageQueue]], Awaitable[Collection[MessageQueue] | None]]
"""Returns the queues of a topic that are allocated to this member; None if unknown for now."""

RECONNECT_S = LOOP_BACK_OFF_S_MAX * (1 + JITTER)
"""How long a member that is missing after a lost connection may take to reconnect.

This is the longest pause between two attempts of a member's loops to reach a broker. It is shorter
than the 30 s for which a member trusts its queue locks: it still consumes its queues meanwhile.
"""


class _Share(NamedTuple):
    """The last allocation of one topic."""

    members: list[str]
    """All members of the group."""
    mine: frozenset[MessageQueue]
    former_owners: dict[MessageQueue, str]
    """Other members that had some of these queues before."""


class MemberAllocation:
    """Allocates queues in the client: each member of a group computes its own.

    A broker that restarted lists only the members that have reconnected, and the others still
    consume their queues. So if members are missing in the first lists over a new connection, the
    allocation is unknown until they are listed again, for at most `RECONNECT_S` seconds. After
    that, a member that unregisters or is killed loses its queues at once.

    Args:
        instance: the connections and routes to use.
        group: the consumer group.
        broadcast: whether each member has all queues, so that nothing is allocated.
        strategy: allocates.
    """

    def __init__(
        self, instance: ClientCore, group: str, *, broadcast: bool, strategy: AllocationStrategy
    ) -> None:
        self._instance = instance
        self._group = group
        self._broadcast = broadcast
        self._strategy = strategy
        self._former: frozenset[str] = frozenset()
        """The members of the last allocation."""
        self._shares: dict[str, _Share] = {}
        """The last allocation of each topic."""
        self._wait_ends_s: float | None = None
        """When the wait for missing members ends; None while there is no wait."""
        self._complete: set[tuple[str, float]] = set()
        """New connections over which no missing member is waited for: address and time."""

    async def __call__(self, topic: str, queues: list[MessageQueue]) -> list[MessageQueue] | None:
        """Return the queues allocated to this member; None while members reconnect."""
        if self._broadcast:
            return queues
        listed = await self._members(topic)
        if self._awaits_members(listed):
            return None
        own, members = self._instance.client_id, sorted(set(listed.client_ids))
        self._former = frozenset(members)
        if own not in members:
            log.warning(
                "this client is missing in the member list group=%s client=%s", self._group, own
            )
        found = self._strategy.allocate(self._group, own, queues, members)
        if foreign := set(found).difference(queues):
            raise AllocationError(
                f"strategy {self._strategy.name} allocated {foreign.pop()!s:.200}, which is no "
                f"readable queue of {topic}"
            )
        self._note_owners(topic, queues, members, frozenset(found))
        return found

    def others(self) -> set[str]:
        """Return the other members of the last allocation."""
        return set(self._former - {self._instance.client_id})

    def former_owner(self, queue: MessageQueue) -> str | None:
        """Return the other member that had a queue before it was allocated to this one, if any."""
        share = self._shares.get(queue.topic)
        return None if share is None else share.former_owners.get(queue)

    def forget(self, topic: str) -> None:
        """Forget the allocation of a topic that is not subscribed any more."""
        self._shares.pop(topic, None)

    def _note_owners(
        self,
        topic: str,
        queues: list[MessageQueue],
        members: list[str],
        mine: frozenset[MessageQueue],
    ) -> None:
        """Find out which members had the queues that are new to this one: all use one strategy."""
        own, before = self._instance.client_id, self._shares.get(topic)
        if before is None:
            before = _Share([each for each in members if each != own], frozenset(), {})
        owners = {queue: who for queue, who in before.former_owners.items() if queue in mine}
        if added := mine - before.mine:
            for member in before.members:
                if member != own:
                    owned = self._allocated_to(member, queues, before.members, added)
                    owners |= dict.fromkeys(owned, member)
        self._shares[topic] = _Share(members, mine, owners)

    def _allocated_to(
        self,
        member: str,
        queues: list[MessageQueue],
        members: list[str],
        added: frozenset[MessageQueue],
    ) -> Collection[MessageQueue]:
        try:
            return added.intersection(self._strategy.allocate(self._group, member, queues, members))
        except BaseException as error:
            raise_unless_failure(error)
            return added  # an application's strategy may only know this member

    def _awaits_members(self, listed: MemberList) -> bool:
        """Return whether members of the last allocation are missing and may still reconnect."""
        now_s = asyncio.get_running_loop().time()
        missing = self._former.difference(listed.client_ids)
        connection = (listed.address, listed.connected_s)
        is_new = now_s - listed.connected_s < RECONNECT_S
        if missing and is_new and connection not in self._complete:
            if self._wait_ends_s is None:
                self._wait_ends_s = now_s + RECONNECT_S
                log.info(
                    "members have not reconnected yet, queues stay group=%s address=%s missing=%d",
                    self._group,
                    listed.address,
                    len(missing),
                )
            if now_s < self._wait_ends_s:  # also if the connection breaks again and again
                return True
        self._wait_ends_s = None
        self._complete = {each for each in self._complete if now_s - each[1] < RECONNECT_S}
        if is_new:
            self._complete.add(connection)
        return False

    async def _members(self, topic: str) -> MemberList:
        """Request the member list, after a heartbeat if the broker does not know this client."""
        listed = await self._instance.members(self._group, topic)
        if self._instance.client_id not in listed.client_ids:
            await self._instance.heartbeat()
            listed = await self._instance.members(self._group, topic)
        return listed


MOVES_MAX = 16
"""Queues that are assigned or revoked at a time."""


class Intervals(NamedTuple):
    """Seconds between two rounds of a rebalancer."""

    regular_s: float
    """Between two regular rounds."""
    min_s: float = 1.0
    """Between two rounds at least, and after one that ended unbalanced."""


class Rebalancer:
    """Assigns the allocated queues to their owner, and revokes the others.

    Args:
        instance: the connections and routes to use.
        group: the consumer group.
        allocate: allocates the queues of a topic.
        topics: returns the topics of the group's subscription, its retry topic included.
        owner: assigns and revokes queues.
        intervals: between two rounds.
        on_permanent: called with the error of a permanent failure.
        on_topic: called with a topic and its queues, none if it does not exist, before each
            allocation; with None instead when it is not subscribed any more.
    """

    def __init__(
        self,
        *,
        instance: ClientCore,
        group: str,
        allocate: Allocate,
        topics: Callable[[], Collection[str]],
        owner: QueueOwner,
        intervals: Intervals,
        on_topic: Callable[[str, Collection[MessageQueue] | None], None] | None = None,
        on_permanent: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.paused = False
        """While True, rounds change nothing."""
        self._instance = instance
        self._group = group
        self._allocate = allocate
        self._topics = topics
        self._owner = owner
        self._on_topic = on_topic or (lambda topic, queues: None)
        self._failures = SupervisedFailureLog(
            log,
            fails="rebalance failed, retrying",
            works="rebalance succeeds again",
            name="topic",
            more=f"group={group}",
            on_permanent=on_permanent,
        )
        self._move_failures = SupervisedFailureLog(
            log,
            fails="cannot assign or revoke a queue, retrying",
            works="queue assignment succeeds again",
            name="queue",
            more=f"group={group}",
            on_permanent=on_permanent,
        )
        self._rounds = PeriodicLoop(
            "rebalance",
            "*",
            self._failures,
            self.once,
            interval_s=intervals.regular_s,
            min_interval_s=intervals.min_s,
        )
        self._started = False
        self._round = asyncio.Lock()
        self._states: dict[str, State] = {}
        """The state of each topic that is not new."""
        self._missing: Counter[str] = Counter()
        """How often each topic without a route was looked up."""
        self._round_ended = asyncio.Event()

    def wake(self) -> None:
        """Rebalance soon, without waiting for the next regular round."""
        self._rounds.wake()

    def start(self, tasks: Supervisor) -> None:
        """Rebalance now, at each interval and after `wake`.

        New connections to brokers and changed routes also start a round.
        """
        assert not self._started, "a rebalancer starts once"
        self._started = True
        self._instance.on_broker.append(self._broker_came)
        self._instance.routes.on_change.append(self._route_changed)
        self._rounds.start(tasks)

    async def until_assigned(self, topics: Callable[[], Collection[str]]) -> None:
        """Wait until the owner has its queues of all these topics."""
        while any(self._states.get(topic) is not State.BALANCED for topic in topics()):
            self._round_ended.clear()
            await self._round_ended.wait()

    def _happened(self, topic: str, event: Event) -> Action | None:
        """Take the next state of a topic, and return what is to be done."""
        row = TABLE.row(self._states.get(topic, TABLE.first), event)
        self._states[topic] = row.after
        if row.after is TABLE.first:
            del self._states[topic]
        return row.action

    def failures(self) -> list[str]:
        """Return why queues are not allocated or assigned now, each with its topic or queue."""
        reasons = [*self._failures.reasons(), *self._move_failures.reasons()]
        return [reason for reason in reasons if not reason.startswith(RETRY_PREFIX)]

    async def stop(self) -> None:
        """Stop rebalancing; a round that runs is cancelled. The assignment stays."""
        if self._rounds.ended:
            return
        self._instance.on_broker.remove(self._broker_came)
        self._instance.routes.on_change.remove(self._route_changed)
        await self._rounds.stop()

    def _broker_came(self, address: str) -> None:
        self.wake()

    def _route_changed(self, route: Route) -> None:
        if route.topic in self._topics():
            self.wake()

    async def once(self) -> bool:
        """Do one round now, one topic after the other.

        Returns:
            Whether the owner has exactly the allocated queues, as far as that is known.
        """
        if self.paused:
            return True
        async with self._round:
            topics = sorted(self._topics())
            balanced = True
            for topic in topics:
                balanced &= await self._try(self.balance, topic)
            for topic in sorted(self._states.keys() - topics):
                balanced &= await self._try(self._unsubscribe, topic)
            self._round_ended.set()
            return balanced

    async def _try(self, step: Callable[[str], Awaitable[bool]], topic: str) -> bool:
        """Do a step of a round for one topic; an error is logged and does not concern the others.

        Returns:
            Whether the topic is balanced, or need not be tried again soon.
        """
        self._rounds.note_progress()
        try:
            balanced = await step(topic)
        except BaseException as error:
            raise_unless_failure(error)
            # A retry topic is created when the first message needs it.
            quiet = topic.startswith(RETRY_PREFIX) and isinstance(error, CometError)
            self._failures.failed(topic, error, quiet=quiet)
            if isinstance(error, TopicNotFoundError) and not quiet:
                self._missing[topic] += 1
                return self._missing[topic] > LOOKUPS_MAX
            return isinstance(error, (TopicNotFoundError, AllocationError))
        self._failures.succeeded(topic)
        self._missing.pop(topic, None)
        return balanced

    async def balance(self, topic: str) -> bool:
        """Allocate the queues of a topic, and assign and revoke queues of the owner accordingly.

        Returns:
            Whether the owner has exactly the allocated queues, as far as that is known.

        Raises:
            Exception: they could not be allocated; nothing has changed.
        """
        try:
            queues = sorted((await self._instance.routes.find(topic)).read_queues)
        except TopicNotFoundError:
            self._on_topic(topic, ())
            raise
        self._on_topic(topic, queues)
        mine = await self._allocate(topic, queues)
        if mine is None:
            return False
        self._happened(topic, Event.ALLOCATE)
        return await self._apply(topic, queues, set(mine))

    async def _apply(self, topic: str, queues: list[MessageQueue], mine: set[MessageQueue]) -> bool:
        before = set(self._owner.assigned(topic))
        revoked = await self._move_all(before - mine, self._owner.revoke)
        added = await self._move_all(mine - before, self._owner.assign)
        if added or revoked:
            log.info(
                "queues assigned topic=%s group=%s all=%d assigned=%d added=%d revoked=%d",
                topic,
                self._group,
                len(queues),
                len(mine),
                added,
                revoked,
            )
            await self._owner.rebalanced(topic, queues, sorted(mine))
        have = set(self._owner.assigned(topic))
        lacking = mine - have
        event = Event.LACKS_SOME if lacking else Event.HAS_MORE if have - mine else Event.HAS_ALL
        if self._happened(topic, event) is Action.LOG_WAIT:
            # After an ordered member has crashed, that is up to a minute: until its locks expire.
            log.info(
                "queues are not free yet, retrying topic=%s group=%s queues=%d",
                topic,
                self._group,
                len(lacking),
            )
        return event is Event.HAS_ALL

    async def _unsubscribe(self, topic: str) -> bool:
        """Revoke the queues of a topic that is not subscribed any more."""
        await self._move_all(self._owner.assigned(topic), self._owner.revoke)
        if self._owner.assigned(topic):
            return False
        if self._happened(topic, Event.UNSUBSCRIBED) is Action.FORGET:
            self._on_topic(topic, None)
            await self._owner.rebalanced(topic, [], [])
        return True

    async def _move_all(
        self, queues: Iterable[MessageQueue], move: Callable[[MessageQueue], Awaitable[bool]]
    ) -> int:
        """Assign or revoke queues, several at a time; return how many."""
        limit = asyncio.Semaphore(MOVES_MAX)

        async def one(queue: MessageQueue) -> bool:
            async with limit:
                self._rounds.note_progress()
                try:
                    moved = await move(queue)
                except BaseException as error:
                    raise_unless_failure(error)
                    self._move_failures.failed(str(queue), error)
                    return False
                self._move_failures.succeeded(str(queue))
                return moved

        async with asyncio.TaskGroup() as group:
            moves = [group.create_task(one(queue)) for queue in sorted(queues)]
        return sum(move.result() for move in moves)
