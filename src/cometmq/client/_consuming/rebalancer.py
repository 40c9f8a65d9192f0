"""Divides the queues of a group's topics among its members, on time and when called.

Every member does the same for itself: it asks a broker who is in the group, sorts queues and
members, lets the strategy divide, and takes or gives up what has changed. Nothing else is needed
for all members to agree in the end; in between, a queue may have two owners or none.

Source: RebalanceService and RebalanceImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.routes import Route
from cometmq.client._failure_log import text_of, trace_of
from cometmq.client.allocation import AllocationError, AllocationStrategy, QueueOwner
from cometmq.client.errors import TopicNotFoundError
from cometmq.model.errors import CometError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import is_call_failure

log = logging.getLogger(__name__)

MOVES_MAX = 16
"""Queues that are taken or given up at a time."""


class Rebalancer:
    """Keeps an owner's queues what the strategy says they are.

    Args:
        instance: whose connections and routes are used.
        group: whose queues are divided.
        broadcast: whether every member has all queues, so that nothing is divided.
        strategy: divides.
        topics: gives the topics of the group's subscription, its retry topic included.
        owner: takes queues and gives them up.
        interval_s: seconds between two rounds that nothing called for.
        min_interval_s: seconds between two rounds at least, and after one that ended unbalanced.
    """

    def __init__(
        self,
        *,
        instance: ClientInstance,
        group: str,
        broadcast: bool,
        strategy: AllocationStrategy,
        topics: Callable[[], Collection[str]],
        owner: QueueOwner,
        interval_s: float,
        min_interval_s: float = 1.0,
    ) -> None:
        self.paused = False
        """While True, rounds change nothing."""
        self._instance = instance
        self._group = group
        self._broadcast = broadcast
        self._strategy = strategy
        self._topics = topics
        self._owner = owner
        self._interval_s = interval_s
        self._min_interval_s = min_interval_s
        self._called = asyncio.Event()
        self._turn = asyncio.Lock()
        self._divided: set[str] = set()
        self._failing: set[str] = set()
        self._assigned: set[str] = set()
        """Topics whose queues the owner had after the last round."""
        self._round_ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Divide soon, without waiting for the next regular round."""
        self._called.set()

    def start(self, tasks: Supervisor) -> None:
        """Begin with a first round; go on with one every interval, and whenever called.

        Calls come from brokers too: from connections made anew, and from routes that changed.
        """
        assert self._task is None, "a rebalancer starts once"
        self._instance.on_broker.append(self._broker_came)
        self._instance.routes.on_change.append(self._route_changed)
        self._task = tasks.spawn(self._run(), "rebalance")

    async def until_assigned(self, topics: Callable[[], Collection[str]]) -> None:
        """Wait until the owner has its queues of all these topics."""
        while not self._assigned.issuperset(topics()):
            self._round_ended.clear()
            await self._round_ended.wait()

    async def stop(self) -> None:
        """End the rounds; one that is under way is cancelled. Queues stay as they are."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._instance.on_broker.remove(self._broker_came)
        self._instance.routes.on_change.remove(self._route_changed)
        if task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])

    def _broker_came(self, address: str) -> None:
        self.wake()

    def _route_changed(self, route: Route) -> None:
        if route.topic in self._topics():
            self.wake()

    async def _run(self) -> None:
        while True:
            self._called.clear()
            wait_s = self._interval_s if await self._round() else self._min_interval_s
            await asyncio.sleep(self._min_interval_s)
            await self._until_called(wait_s - self._min_interval_s)

    async def _round(self) -> bool:
        """Do one round; an error is logged, and the next round comes soon."""
        try:
            return await self.once()
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.exception("rebalance failed, retrying group=%s", self._group)
            return False

    async def _until_called(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(max(timeout, 0)):
                await self._called.wait()
        except TimeoutError:
            pass

    async def once(self) -> bool:
        """Divide the queues of every topic now, one topic after the other.

        Returns:
            Whether the owner now has just what the strategy says, as far as that could be told.
        """
        if self.paused:
            return True
        async with self._turn:
            topics = sorted(self._topics())
            balanced = True
            for topic in topics:
                balanced &= await self._try(self._divide, topic)
            for topic in sorted(self._divided.difference(topics)):
                balanced &= await self._try(self._leave, topic)
            self._round_ended.set()
            return balanced

    async def _try(self, step: Callable[[str], Awaitable[bool]], topic: str) -> bool:
        """Do a step of a round for one topic; an error is logged and does not concern the others.

        Returns:
            Whether the topic is balanced, or need not be tried again soon.
        """
        try:
            balanced = await step(topic)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            self._log_failure(topic, error)
            return isinstance(error, (TopicNotFoundError, AllocationError))
        self._failing.discard(topic)
        return balanced

    async def _divide(self, topic: str) -> bool:
        queues = sorted((await self._instance.routes.find(topic)).read_queues)
        mine = queues if self._broadcast else await self._share(topic, queues)
        self._divided.add(topic)
        self._assigned.discard(topic)
        balanced = await self._carry_out(topic, queues, set(mine))
        if balanced:
            self._assigned.add(topic)
        return balanced

    def _log_failure(self, topic: str, error: BaseException) -> None:
        """Log the first error of a topic; further ones only for debugging, until a round succeeds.

        An error that this client does not define has a line of its own, with the traceback.
        """
        quiet = topic in self._failing
        self._failing.add(topic)
        if not isinstance(error, CometError):
            log.log(
                logging.DEBUG if quiet else logging.ERROR,
                "rebalance failed, retrying topic=%s group=%s",
                *(topic, self._group),
                exc_info=error,
            )
            return
        log.log(
            logging.DEBUG if quiet or _may_be_missing(topic) else logging.WARNING,
            "rebalance failed, assignment unchanged topic=%s group=%s error=%s",
            *(topic, self._group, error),
        )

    async def _share(self, topic: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        own, members = self._instance.client_id, await self._members(topic)
        if own not in members:
            log.warning(
                "this client is missing in the member list group=%s client=%s", self._group, own
            )
        return self._strategy.allocate(self._group, own, queues, members)

    async def _members(self, topic: str) -> list[str]:
        """Ask who is in the group; a broker that does not know this client is greeted first."""
        members = await self._instance.members(self._group, topic)
        if self._instance.client_id not in members:
            await self._instance.heartbeat()
            members = await self._instance.members(self._group, topic)
        return sorted(set(members))

    async def _carry_out(
        self, topic: str, queues: list[MessageQueue], mine: set[MessageQueue]
    ) -> bool:
        before = set(self._owner.owned(topic))
        given = await self._each(before - mine, self._owner.give_up)
        taken = await self._each(mine - before, self._owner.take)
        if given or taken:
            log.info(
                "queues assigned topic=%s group=%s all=%d assigned=%d added=%d revoked=%d",
                *(topic, self._group, len(queues), len(mine), taken, given),
            )
            await self._owner.divided(topic, queues, sorted(mine))
        return set(self._owner.owned(topic)) == mine

    async def _leave(self, topic: str) -> bool:
        """Give up the queues of a topic that is not subscribed any more."""
        await self._each(self._owner.owned(topic), self._owner.give_up)
        if self._owner.owned(topic):
            return False
        self._divided.discard(topic)
        self._assigned.discard(topic)
        await self._owner.divided(topic, [], [])
        return True

    async def _each(
        self, queues: Iterable[MessageQueue], move: Callable[[MessageQueue], Awaitable[bool]]
    ) -> int:
        """Move queues, several at a time; give how many could be moved."""
        room = asyncio.Semaphore(MOVES_MAX)

        async def one(queue: MessageQueue) -> bool:
            async with room:
                try:
                    return await move(queue)
                except BaseException as error:
                    if not is_call_failure(error):
                        raise
                    log.warning(
                        "cannot assign or revoke a queue queue=%s error=%s",
                        *(queue, text_of(error)),
                        exc_info=trace_of(error),
                    )
                    return False

        async with asyncio.TaskGroup() as group:
            moves = [group.create_task(one(queue)) for queue in sorted(queues)]
        return sum(move.result() for move in moves)


def _may_be_missing(topic: str) -> bool:
    """Whether a topic comes into being only once it is needed."""
    return topic.startswith(RETRY_PREFIX)
