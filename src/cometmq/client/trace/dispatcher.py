"""Gathers trace records and sends them, many in one message, apart from the work they tell of.

A record that finds the queue full is dropped and counted: traces never hold up messages. One task
sends, and runs only while somebody holds the dispatcher.

Source: AsyncTraceDispatcher, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._failure_log import FailureLog
from cometmq.client._sending.sender import Sender
from cometmq.client.settings import ProducerSettings, Tables, TraceSettings, resolve_settings
from cometmq.client.trace.records import Record, encode
from cometmq.model.message import Message
from cometmq.model.topic import TRACE_TOPIC
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

GROUP = "_INNER_TRACE_PRODUCER"
CLOUD_TOPIC_PREFIX = "rmq_sys_TRACE_DATA_"
KEYS_BYTES_MAX = 24_000
"""Keys of one trace message: properties have room for 32,767 bytes."""
RELEASE_S = 5.0
"""Time for the last records when the last user leaves."""


@dataclass(slots=True)
class _Parcel:
    """Records that travel in one message."""

    topic: str
    since_s: float
    texts: list[str] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    """In their order, each once."""
    text_bytes: int = 0
    keys_bytes: int = 0

    def add(self, text: str, keys: Iterable[str]) -> None:
        self.texts.append(text)
        self.text_bytes += len(text.encode())
        for key in keys:
            if key not in self.keys:
                self.keys[key] = None
                self.keys_bytes += len(key.encode()) + 1

    def message(self) -> Message:
        body = "".join(self.texts).encode()
        return Message(topic=self.topic, body=body, keys=list(self.keys))


class TraceDispatcher:
    """Takes trace records of all members of an instance, and sends them in the background.

    Args:
        instance: whose connections are used.
        settings: how many records wait, and how long.
        cloud: whether topic and records have the form of the cloud service.
    """

    def __init__(
        self,
        instance: ClientInstance,
        settings: TraceSettings | None = None,
        *,
        cloud: bool = False,
    ) -> None:
        self._settings = settings or TraceSettings()
        self._cloud = cloud
        self._ids = instance.unique_ids()
        self._sender = Sender(instance, GROUP, ProducerSettings())
        self._tasks = Supervisor("traces")
        self._users = 0
        self._retains = 0
        self._task: asyncio.Task[None] | None = None
        self._parcels: dict[tuple[str, str], _Parcel] = {}
        self._due: deque[_Parcel] = deque()
        """Parcels that are full or have waited long enough, in the order in which they are sent."""
        self._waiting = 0
        self._work = asyncio.Event()
        self._hurry = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._sending = FailureLog(
            log, fails="traces not sent", works="traces are sent again", name="topic"
        )
        self.dropped = 0
        """Records that were given up, because too many waited or no broker took them."""

    @classmethod
    def of(cls, instance: ClientInstance, tables: Tables | None = None) -> TraceDispatcher:
        """Give the one of an instance; who uses it calls `retain` and `release`.

        Args:
            instance: whose connections are used.
            tables: where its settings are looked for if it is made now, beside the environment.
        """

        def make() -> TraceDispatcher:
            settings = resolve_settings(TraceSettings, tables=tables)
            return cls(instance, settings, cloud=instance.settings.cloud)

        return instance.shared(cls, make)

    def retain(self) -> None:
        """Begin to use it: the first user starts its task."""
        self._users += 1
        self._retains += 1
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._run(), "send")

    async def release(self) -> None:
        """End using it: with the last user the rest is sent, for 5 seconds at most.

        If another user comes meanwhile, the task is left to it.
        """
        self._users -= 1
        if self._users:
            return
        retains = self._retains
        try:
            await self.flush(RELEASE_S)
        finally:
            if retains == self._retains:
                self._drop_rest()
                self._task = None
                await self._tasks.cancel()

    def add(self, record: Record, *, topic: str, region: str, keys: Iterable[str]) -> bool:
        """Take a record.

        Args:
            record: what happened.
            topic: where traces of its producer or consumer go; empty for RocketMQ's own topic.
            region: where the message is stored.
            keys: by which the trace is found: the message's id and keys.

        Returns:
            False when so many records wait that this one was dropped.
        """
        if self._waiting >= self._settings.waiting_max:
            self._drop(1)
            return False
        place = (self._topic(topic, region), region)
        parcel = self._parcels.get(place)
        if parcel is None:
            parcel = self._parcels[place] = _Parcel(place[0], _now())
            self._work.set()
        parcel.add(encode(record, cloud=self._cloud), [key for key in keys if key.strip()])
        self._waiting += 1
        self._empty.clear()
        if (
            parcel.text_bytes >= self._settings.body_bytes_max
            or parcel.keys_bytes >= KEYS_BYTES_MAX
        ):
            self._due.append(self._parcels.pop(place))
            self._work.set()
        return True

    def new_id(self) -> str:
        """Give an id for a call of a handler, which stands in both of its records."""
        return self._ids.next()

    async def flush(self, timeout: float) -> bool:
        """Send what waits now.

        Returns:
            Whether all of it left within ``timeout`` seconds.
        """
        self._hurry = True
        self._work.set()
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            log.warning("traces not sent in time records=%s", self._waiting)
            return False
        return True

    def _topic(self, topic: str, region: str) -> str:
        return f"{CLOUD_TOPIC_PREFIX}{region}" if self._cloud else topic or TRACE_TOPIC

    async def _run(self) -> None:
        while True:
            await self._until_due()
            self._move_due()
            while self._due:
                await self._send(self._due.popleft())

    async def _until_due(self) -> None:
        """Return when a parcel is full, or has waited long enough, or somebody flushes."""
        while not self._due and not (self._hurry and self._parcels):
            self._work.clear()
            oldest_s = min((parcel.since_s for parcel in self._parcels.values()), default=None)
            left_s = None
            if oldest_s is not None:
                left_s = oldest_s + self._settings.flush_ms / 1000 - _now()
                if left_s <= 0:
                    return
            try:
                async with asyncio.timeout(left_s):
                    await self._work.wait()
            except TimeoutError:
                return

    def _move_due(self) -> None:
        """Move the parcels that have waited long enough, or all during a flush."""
        limit_s = _now() - self._settings.flush_ms / 1000
        for place, parcel in list(self._parcels.items()):
            if self._hurry or parcel.since_s <= limit_s:
                self._due.append(self._parcels.pop(place))

    async def _send(self, parcel: _Parcel) -> None:
        try:
            timeout = self._settings.timeout_ms / 1000
            await self._sender.send_message(parcel.message(), timeout=timeout)
        except BaseException as error:
            self._drop(len(parcel.texts))
            if not is_call_failure(error):
                raise
            self._sending.failed(parcel.topic, error)
        else:
            self._sending.worked(parcel.topic)
        finally:
            self._settle(parcel)

    def _settle(self, parcel: _Parcel) -> None:
        """Count the records of a parcel as waiting no longer: it was sent or dropped."""
        self._waiting -= len(parcel.texts)
        if not self._waiting:
            self._hurry = False
            self._empty.set()

    def _drop_rest(self) -> None:
        """Drop all parcels but the one that is being sent."""
        rest = [*self._due, *self._parcels.values()]
        self._due.clear()
        self._parcels.clear()
        for parcel in rest:
            self._drop(len(parcel.texts))
            self._settle(parcel)

    def _drop(self, count: int) -> None:
        if not self.dropped:
            log.warning("traces dropped: the buffer is full or no broker accepts them")
        self.dropped += count


def _now() -> float:
    return asyncio.get_running_loop().time()
