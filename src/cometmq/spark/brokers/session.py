"""The interface of brokers for readers and writers: calls that send requests and wait.

A session is made by `cometmq.spark.brokers.connect`. Its connections live in the loop of another
thread; they are opened by the first call, closed when nobody used them for a while, and opened
again by whoever comes then, in a forked child too. A session cannot be sent to another process:
send the options, and connect there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn, TypeVar

from cometmq.client.blocking.portal import Portal
from cometmq.client.filters import Filter
from cometmq.client.library import ClientConnection
from cometmq.protocol.bodies.topic import TopicOffset
from cometmq.spark.brokers.life import IDLE_S, Life
from cometmq.spark.brokers.metadata import Metadata
from cometmq.spark.brokers.patience import Patience
from cometmq.spark.brokers.placing import Placed
from cometmq.spark.brokers.pulls import Read
from cometmq.spark.brokers.reading import read_range
from cometmq.spark.brokers.times import READ_GROUP
from cometmq.spark.errors import GoneError
from cometmq.spark.offsets import Bounds, QueueKey, QueueRange
from cometmq.spark.options.connection import ConnectionOptions

T = TypeVar("T")

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
        self._life = Life(options.client_settings, idle_s=idle_s)
        self._patience = Patience(options.retries, options.retry_interval_ms / 1000)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session has connections and cannot be pickled: send its options instead")

    @property
    def connection(self) -> ClientConnection:
        """The connection for `run`; get it anew each time, since an idle one is closed."""
        with self._life.use() as (_, connection):
            return connection

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine in the loop of `connection` and give its result.

        Args:
            work: the coroutine.
            timeout: seconds, or None to wait for good.

        Raises:
            TimeoutError: the time ran out; the coroutine was cancelled.
        """
        with self._life.use() as (portal, _):
            return portal.run(work, timeout)

    def use(self) -> AbstractContextManager[tuple[Portal, ClientConnection]]:
        """Give the loop and the connection, which stays open within ``with``, for many calls.

        Raises:
            OptionError: a secret cannot be looked up here.
        """
        return self._life.use()

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        self._life.close()

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
        found = self._ask("brokers", lambda metadata: metadata.places.cluster())
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

    # --- where things are in queues -----------------------------------------------------------

    def bounds(
        self,
        keys: Iterable[QueueKey],
        *,
        gone: set[QueueKey] | None = None,
        masters_only: bool = False,
    ) -> dict[QueueKey, Bounds]:
        """Give the oldest and the next offset of each queue.

        Args:
            keys: the queues.
            gone: gets the queues that are no longer readable, which have no bounds then.
            masters_only: whether to wait for the master, as long as for a broker that does not
                answer, instead of taking what a replica says.

        Raises:
            GoneError: a queue is no longer readable, and ``gone`` is None.
            UnreachableError: a broker does not answer, or is not registered with the name server;
                its queues may be as they were; or a master does not, and ``masters_only`` is set.
        """
        return self._ask_of(
            keys,
            "bounds",
            gone,
            lambda metadata, placed: metadata.bounds(placed, masters_only=masters_only),
        )

    def at_time(self, key_times: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """Give each queue's first offset stored at or after a time in ms since 1970.

        Where nothing is that new, it is the offset that the queue's next message will have.

        Raises:
            GoneError: a queue is no longer readable.
            UnreachableError: a master did not respond; replicas are not asked.
        """
        return self._ask_of(
            key_times,
            "offsets by time",
            None,
            lambda metadata, placed: metadata.at_time(placed, key_times),
        )

    def store_times(
        self, offsets: Mapping[QueueKey, int], *, group: str = READ_GROUP
    ) -> dict[QueueKey, int]:
        """Give the store time in ms since 1970 of one message of each queue.

        Queues without a message at the offset are left out, and queues that are no longer readable.

        Args:
            offsets: the offset of the message by queue.
            group: on whose behalf messages are pulled.
        """
        return self._ask_of(
            offsets,
            "store times",
            set(),
            lambda metadata, placed: metadata.store_times(placed, offsets, group),
        )

    def committed(self, group: str, keys: Iterable[QueueKey]) -> dict[QueueKey, int]:
        """Give what a group has committed; queues where it has committed nothing are left out.

        Raises:
            GoneError: a queue is no longer readable.
            UnreachableError: a master did not respond; replicas are not asked.
        """
        return self._ask_of(
            keys,
            f"offsets of group {group}",
            None,
            lambda metadata, placed: metadata.committed(placed, group),
        )

    def commit(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Store the next offsets of a group, for others to watch.

        Raises:
            GoneError: a queue is no longer readable; the others' offsets are stored all the same.
        """

        async def store(metadata: Metadata, placed: Placed) -> dict[QueueKey, None]:
            await metadata.commit(placed, group, offsets)
            return {}

        self._ask_of(offsets, f"offsets of group {group}", None, store)

    def stats(
        self, keys: Iterable[QueueKey], *, gone: set[QueueKey] | None = None
    ) -> dict[QueueKey, TopicOffset]:
        """Give bounds and the time of the newest message of each queue that brokers tell of.

        Raises:
            GoneError: a queue is no longer readable, and ``gone`` is None.
        """
        return self._ask_of(
            keys, "statistics", gone, lambda metadata, placed: metadata.stats(placed)
        )

    def group_offsets(self, broker: str) -> dict[tuple[str, str], dict[int, int]]:
        """Give all offsets that groups have committed on a broker: by topic and group, by queue."""

        async def ask(metadata: Metadata) -> dict[tuple[str, str], dict[int, int]]:
            return await metadata.group_offsets(broker)

        return self._ask(f"offsets of groups on {broker}", ask)

    # --- messages -----------------------------------------------------------------------------

    def read(
        self,
        wanted: QueueRange,
        *,
        filter: Filter | None = None,
        batch_size: int = PULL_MESSAGES,
        timeout_ms: int = 120_000,
        group: str = READ_GROUP,
        skip_expired: bool = False,
    ) -> Iterator[bytes]:
        """Give the records of a range as brokers store them, back to back, in pieces.

        A piece holds whole records, in the order of their offsets. The last one may hold some at
        or behind the range's end, the first one some before its start: the decoder leaves them out.
        A filter by tags is the broker's, which compares hashes only: compare the text as well.

        Args:
            wanted: the range.
            filter: what the broker leaves out; None for nothing.
            batch_size: messages asked for at once; the broker's own limits may be lower.
            timeout_ms: how long to wait while nothing of the range comes: a broker that restarts,
                a copy that lags behind.
            group: on whose behalf; a broker may know it, or create it.
            skip_expired: whether to go on at the oldest message where some have expired.

        Raises:
            DataLossError: messages of the range have expired.
            RangeError: the queue does not reach to the range's end in time.
            UnreachableError: no broker that has the queue answered in time.
            GoneError: the queue is no longer readable.
        """
        with self._life.use() as (portal, connection):
            read = Read(
                wanted, filter or Filter(), batch_size, timeout_ms / 1000, group, skip_expired
            )
            yield from read_range(portal, connection, read)

    # --- asking -------------------------------------------------------------------------------

    def _ask(self, what: str, ask: Callable[[Metadata], Coroutine[Any, Any, T]]) -> T:
        with self._life.use() as (portal, connection):
            metadata = Metadata(connection)
            return portal.run(self._patience.ask(what, lambda: ask(metadata)))

    def _ask_of(
        self,
        keys: Iterable[QueueKey],
        what: str,
        gone: set[QueueKey] | None,
        ask: Callable[[Metadata, Placed], Coroutine[Any, Any, dict[QueueKey, T]]],
    ) -> dict[QueueKey, T]:
        keys = sorted(set(keys))

        async def placed(metadata: Metadata) -> tuple[Placed, dict[QueueKey, T]]:
            found = await metadata.places.place(keys)
            return found, await ask(metadata, found) if found.addresses else {}

        where, answers = self._ask(f"{what} of {_queues(keys)}", placed)
        if where.gone and gone is None:
            key, why = next(iter(where.gone.items()))
            more = f", and {len(where.gone) - 1} more" if len(where.gone) > 1 else ""
            raise GoneError(f"{key}: no longer readable: {why}{more}")
        if gone is not None:
            gone.update(where.gone)
        return answers


def _list(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _queues(keys: list[QueueKey]) -> str:
    return f"{len(keys)} queues of topic {_list(sorted({key.topic for key in keys}))}"
