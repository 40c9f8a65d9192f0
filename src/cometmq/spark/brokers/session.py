"""The interface of brokers for readers and writers: calls that send requests and wait.

A session is made by `connect`: one for all readers and writers with equal connection options. Its
connections live in the loop of another thread; they are opened by the first call, closed when
nobody used them for a while, and opened again by whoever comes then, in a forked child too. A
session cannot be sent to another process: send the options, and connect there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

from cometmq.client.blocking.portal import Portal
from cometmq.client.filters import Filter
from cometmq.client.library import ClientConnection
from cometmq.spark.brokers.client_lease import IDLE_S, ClientLease
from cometmq.spark.brokers.metadata import Metadata, Sample, StoreTimes
from cometmq.spark.brokers.reading import Read, read_range
from cometmq.spark.brokers.retry_policy import AwayError, RetryPolicy
from cometmq.spark.brokers.routes import QueueRoutes, ask_each
from cometmq.spark.brokers.times import READ_GROUP
from cometmq.spark.errors import GoneError, UnreachableError
from cometmq.spark.offsets import Bounds, QueueKey, QueueRange
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.system.platforms import SYSTEM

T = TypeVar("T")
R = TypeVar("R")

Away: TypeAlias = dict[QueueKey, str]
"""Queues whose broker does not respond, and why."""

PULL_MESSAGES: Final = 1_024
"""Messages requested in one pull. The limits of brokers apply: our brokers return up to 256 KiB,
RocketMQ 32 messages."""


class BrokerSession:
    """Asks the name servers and brokers that the options name.

    Args:
        options: where servers are, and who asks.
        idle_s: after how many seconds without use the connections are closed.

    Every method raises `UnreachableError` when servers did not answer, however often they were
    asked, and `SourceError` when one refused.
    """

    def __init__(self, options: ConnectionOptions, *, idle_s: float = IDLE_S) -> None:
        self._options = options
        self._lease = ClientLease(options.client_settings, idle_s=idle_s)
        self._retry = RetryPolicy(options.retries, options.retry_interval_ms / 1000)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session has connections and cannot be pickled: send its options instead")

    def retrying(self, limit_s: float, *, retries: int | None = None) -> BrokerSession:
        """Return a session with these connections and another retry policy.

        Args:
            limit_s: seconds for all attempts of a request; ``math.inf`` for no limit.
            retries: how often a request is repeated; None for no limit.
        """
        other = object.__new__(BrokerSession)
        other._options, other._lease = self._options, self._lease
        other._retry = replace(self._retry, retries=retries, limit_s=limit_s)
        return other

    def use(self) -> AbstractContextManager[tuple[Portal, ClientConnection]]:
        """Give the loop and the connection, which stays open within ``with``, for many calls.

        Raises:
            OptionError: a secret cannot be looked up here.
        """
        return self._lease.use()

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        self._lease.close()

    # --- what there is ------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Give the names of all topics, sorted, the system's own included."""
        return self._ask("topics", lambda metadata: metadata.topics())

    def topics_matching(self, pattern: str) -> list[str]:
        """Give the topics whose whole name matches a regular expression, sorted."""
        matches = re.compile(pattern).fullmatch
        return [topic for topic in self.topics() if matches(topic)]

    def brokers(self) -> dict[str, str]:
        """Give the brokers that are registered now: name and cluster."""
        found = self._ask("brokers", lambda metadata: metadata.finder.cluster())
        return {name: data.cluster or "" for name, data in found.broker_addr_table.items()}

    def queues(self, topics: Iterable[str], *, gone: set[str] | None = None) -> list[QueueKey]:
        """Give the queues of topics that can be read now, sorted.

        The queues of a broker that is away may be missing: `bounds` tells whether a queue is gone.

        Args:
            topics: the topics.
            gone: gets the topics that do not exist, which have no queues then.

        Raises:
            GoneError: a topic does not exist, and ``gone`` is None.
        """
        names = sorted(set(topics))
        found = self._ask(f"routes of {_list(names)}", lambda metadata: metadata.queues(names))
        missing = [topic for topic, keys in found.items() if keys is None]
        if gone is not None:
            gone.update(missing)
        elif missing:
            raise GoneError(f"topic {_list(missing)}: there is no such topic")
        return sorted(key for keys in found.values() for key in keys or ())

    # --- offsets of queues --------------------------------------------------------------------
    #
    # Each of these calls asks every broker by itself. With ``away`` a broker that does not respond
    # is no error: the call gives what the others respond, and ``away`` gets the queues without a
    # response, each with the reason. Queues that it has before the call are requested once, without
    # retries, and leave it if there is a response. Without ``away`` the call raises
    # `UnreachableError`. A queue that is no longer readable is a `GoneError`, or is put into
    # ``gone``. ``group`` is on whose behalf messages are pulled.

    def bounds(
        self,
        keys: Iterable[QueueKey],
        *,
        gone: set[QueueKey] | None = None,
        away: Away | None = None,
        masters_only: bool = False,
    ) -> dict[QueueKey, Bounds]:
        """Give the oldest and the next offset of each queue.

        With ``masters_only`` it waits for the master, as long as for a broker that does not answer,
        instead of taking what a replica says.
        """
        ask = partial(Metadata.bounds, masters_only=masters_only)
        return self._ask_of(keys, "bounds", ask, gone=gone, away=away)

    def at_time(
        self, key_times: Mapping[QueueKey, int], *, away: Away | None = None
    ) -> dict[QueueKey, int]:
        """Give each queue's first offset stored at or after a time in ms since 1970.

        Where nothing is that new, it is the offset that the queue's next message will have. Only
        masters are asked.
        """
        ask = partial(Metadata.at_time, times=key_times)
        return self._ask_of(key_times, "offsets by time", ask, away=away)

    def store_times(
        self,
        offsets: Mapping[QueueKey, int],
        *,
        group: str = READ_GROUP,
        away: Away | None = None,
    ) -> dict[QueueKey, StoreTimes]:
        """Give the store times of one message of each queue and of the message after it.

        Queues without a message at the offset are left out, and queues that are no longer readable.
        """
        ask = partial(Metadata.store_times, offsets=offsets, group=group)
        return self._ask_of(offsets, "store times", ask, gone=set(), away=away)

    def samples(
        self,
        offsets: Mapping[QueueKey, int],
        *,
        group: str = READ_GROUP,
        messages: int = 32,
        away: Away | None = None,
    ) -> dict[QueueKey, Sample]:
        """Give the store time and the mean size of the messages of each queue from an offset on.

        Queues without a message there are left out, and queues that are no longer readable. The
        size is the mean of that many messages.
        """
        ask = partial(Metadata.samples, offsets=offsets, group=group, messages=messages)
        return self._ask_of(offsets, "first messages", ask, gone=set(), away=away)

    def committed(self, group: str, keys: Iterable[QueueKey]) -> dict[QueueKey, int]:
        """Give what a group has committed; queues where it has committed nothing are left out.

        Only masters are asked.
        """
        ask = partial(Metadata.committed, group=group)
        return self._ask_of(keys, f"offsets of group {group}", ask)

    def commit(
        self, group: str, offsets: Mapping[QueueKey, int], *, away: Away | None = None
    ) -> None:
        """Store the next offsets of a group, for others to watch.

        Raises:
            GoneError: a queue is no longer readable; the others' offsets are stored all the same.
        """

        async def store(metadata: Metadata, routes: QueueRoutes) -> dict[QueueKey, None]:
            await metadata.commit(routes, group, offsets)
            return {}

        self._ask_of(offsets, f"offsets of group {group}", store, away=away)

    def group_offsets(self, broker: str) -> dict[tuple[str, str], dict[int, int]]:
        """Give all offsets that groups have committed on a broker: by topic and group, by queue."""
        what = f"offsets of groups on {broker}"
        return self._ask(what, lambda metadata: metadata.group_offsets(broker))

    # --- messages -----------------------------------------------------------------------------

    def read(
        self,
        wanted: QueueRange,
        *,
        filter: Filter | None = None,
        batch_size: int = PULL_MESSAGES,
        timeout_ms: int = 120_000,
        group: str = READ_GROUP,
        away_s: float = 0.0,
    ) -> Iterator[bytes]:
        """Give the records of a range as brokers store them, back to back, in pieces.

        A piece holds whole records, in the order of their offsets. The last one may hold some at
        or behind the range's end, the first one some before its start: the decoder leaves them out.
        A filter by tags is the broker's, which compares hashes only: compare the text as well.

        Args:
            wanted: the range.
            filter: what the broker leaves out; None for nothing.
            batch_size: messages asked for at once; the broker's own limits may be lower.
            timeout_ms: how long to wait while nothing of the range comes.
            group: on whose behalf; a broker may know it, or create it.
            away_s: how long to wait while no broker of the queue responds, if that is longer than
                ``timeout_ms``; ``math.inf`` for no limit.

        Raises:
            DataLossError: messages of the range have expired.
            RangeError: the queue does not reach to the range's end in time.
            UnreachableError: no broker that has the queue answered in time.
            GoneError: the queue is no longer readable.
        """
        with self._lease.use() as (portal, connection):
            read = Read(
                wanted,
                filter or Filter(),
                batch_size,
                timeout_ms / 1000,
                group,
                away_s,
            )
            yield from read_range(portal, connection, read)

    # --- asking -------------------------------------------------------------------------------

    def _ask(self, what: str, ask: Callable[[Metadata], Coroutine[Any, Any, T]]) -> T:
        with self._lease.use() as (portal, connection):
            metadata = Metadata(connection)
            return portal.run(self._retry.run(what, lambda: ask(metadata)))

    def _ask_of(
        self,
        keys: Iterable[QueueKey],
        what: str,
        ask: Callable[[Metadata, QueueRoutes], Coroutine[Any, Any, dict[QueueKey, T]]],
        *,
        gone: set[QueueKey] | None = None,
        away: Away | None = None,
    ) -> dict[QueueKey, T]:
        request = _QueueRequest(self._retry, sorted(set(keys)), what, ask, away)
        with self._lease.use() as (portal, connection):
            portal.run(request.run(Metadata(connection)))
        if request.gone and gone is None:
            key, why = next(iter(sorted(request.gone.items())))
            more = f", and {len(request.gone) - 1} more" if len(request.gone) > 1 else ""
            raise GoneError(f"{key}: no longer readable: {why}{more}")
        if gone is not None:
            gone.update(request.gone)
        if away is not None:
            for key in request.keys:
                away.pop(key, None)
            away.update(request.away)
        return request.found


class _QueueRequest(Generic[T]):
    """One request about queues, sent to each of their brokers with retries of its own."""

    def __init__(
        self,
        retry: RetryPolicy,
        keys: list[QueueKey],
        what: str,
        ask: Callable[[Metadata, QueueRoutes], Coroutine[Any, Any, dict[QueueKey, T]]],
        suspects: Away | None,
    ) -> None:
        self._retry = retry
        self.keys = keys
        self._what = what
        self._ask = ask
        self._fails = suspects is None
        self._suspects = frozenset(suspects or ())
        self.found: dict[QueueKey, T] = {}
        self.gone: dict[QueueKey, str] = {}
        self.away: Away = {}

    async def run(self, metadata: Metadata) -> None:
        """Send the request, and collect what brokers respond.

        Raises:
            UnreachableError: a broker does not respond, and that is an error.
            SourceError: a broker refused.
        """
        routes = await self._responses(self.keys, "routes", lambda: metadata.finder.find(self.keys))
        if routes is None:
            return
        self.gone.update(routes.gone)
        parts = routes.by_broker()
        await ask_each(range(len(parts)), lambda i: self._of_broker(metadata, parts[i]))

    async def _of_broker(self, metadata: Metadata, first: QueueRoutes) -> None:
        """Ask one broker, by the routes that are known and then by new ones."""
        keys = [*first.addresses, *first.away]
        known: QueueRoutes | None = first

        async def attempt() -> tuple[QueueRoutes, dict[QueueKey, T]]:
            nonlocal known
            routes, known = known or await metadata.finder.find(keys), None
            if routes.away:
                raise AwayError(next(iter(routes.away.values())))
            return routes, await self._ask(metadata, routes) if routes.addresses else {}

        responded = await self._responses(keys, self._what, attempt)
        if responded is not None:
            self.gone.update(responded[0].gone)
            self.found.update(responded[1])

    async def _responses(
        self, keys: list[QueueKey], what: str, attempt: Callable[[], Coroutine[Any, Any, R]]
    ) -> R | None:
        """Return the response, None if there is none; the queues are away then."""
        retry = self._retry
        if self._suspects.issuperset(keys):
            retry = replace(retry, retries=0)
        try:
            return await retry.run(f"{what} of {_queues(keys)}", attempt)
        except UnreachableError as error:
            if self._fails:
                raise
            self.away.update(dict.fromkeys(keys, str(error)))
            return None


def _list(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _queues(keys: list[QueueKey]) -> str:
    return f"{len(keys)} queues of topic {_list(sorted({key.topic for key in keys}))}"


class _Pool:
    """The sessions of this process, by their options; a forked child makes its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sessions: dict[ConnectionOptions, BrokerSession] = {}


_pool = _Pool()


def connect(options: ConnectionOptions) -> BrokerSession:
    """Give the session for these options; it opens connections when they are needed.

    Args:
        options: of any format that has connection options. What else it has does not count.

    Raises:
        OptionError: a secret is not a reference, or what it refers to is not there.
    """
    key = options.connection()
    with _pool.lock:
        session = _pool.sessions.get(key)
        if session is None:
            session = _pool.sessions[key] = BrokerSession(key)
    return session


def disconnect_all() -> None:
    """Close the connections of every session of this process; using one opens them again."""
    with _pool.lock:
        sessions = list(_pool.sessions.values())
        _pool.sessions.clear()
    for session in sessions:
        session.close()


def _forget_in_child() -> None:
    global _pool
    _pool = _Pool()


SYSTEM.after_fork(_forget_in_child)
