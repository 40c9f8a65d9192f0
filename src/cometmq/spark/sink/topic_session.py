"""Opens the producer session of a task at the brokers of a topic.

The session makes this attempt of the task the only one that can send, and tells where earlier
attempts may have stored rows. The broker with the smallest name chooses the epoch, and the others
take it, so attempts that open at the same time are in one order everywhere. See the decision
"A producer session is an epoch in the log, and a repeated task reads back".
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from cometmq.client.errors import TopicNotFoundError
from cometmq.client.library import (
    EncodedSender,
    OpenedSession,
    ProducerSession,
    SessionFencedError,
)
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.spark.errors import DeliveryError, FencedError, NotExactlyOnceError
from cometmq.spark.offsets import QueueKey, QueueRange
from cometmq.spark.sink.queued_sends import PAUSE_MAX_S, PAUSE_S, RETRIED, SendLimits
from cometmq.spark.sink.unique_ids import Origin

OPENINGS_MAX: Final = 10
"""How often an attempt takes a newer epoch because another one opens at the same time."""
DAY_MS: Final = 86_400_000
NEW_TOPIC_S: Final = 2.0
"""For this long a topic may be missing at a name server at which brokers register again."""
_RETRIED: Final = RETRIED - {ResponseCode.SYSTEM_ERROR}
"""A broker that does not know the request, and has access control, may refuse it with that."""


class SessionTask(NamedTuple):
    """What the producer sessions of a task have in common."""

    origin: Origin
    limits: SendLimits
    is_named: bool
    """Whether the job may be started again by its name; otherwise a day is enough."""


class TopicSession:
    """The producer session of one attempt of a task, for one topic.

    Args:
        sender: sends requests to brokers.
        topic: the topic's name.
        task: what the sessions of the task have in common.

    Use it in the sender's event loop only.
    """

    def __init__(self, sender: EncodedSender, topic: str, task: SessionTask) -> None:
        self._sender = sender
        self._topic = topic
        self._origin, self._limits, self._is_named = task
        job = blake2b(self._origin.job.encode(), digest_size=16).hexdigest()
        name = f"{job}/{self._origin.partition}"
        self.session = ProducerSession(name, uuid.uuid4().hex, 0)
        """What sends name."""
        self.brokers: frozenset[str] = frozenset()
        """The brokers at which it is open."""
        self._ends: dict[QueueKey, int] = {}

    async def open(self) -> list[QueueRange]:
        """Open the session; return the ranges in which earlier attempts may have stored rows.

        Raises:
            FencedError: a newer batch was written, or other attempts open again and again.
            NotExactlyOnceError: a broker of the topic has no producer sessions, or refuses this
                one, or rows of earlier attempts cannot be read.
            DeliveryError: a broker does not respond.
        """
        opened = await self._opened(0, is_new=True)
        if not all(each.is_complete for each in opened.values()):
            raise NotExactlyOnceError(
                f"topic {self._topic}: messages were deleted that earlier attempts may have stored"
                f" ({self._who()})"
            )
        begins = {
            QueueKey(self._topic, broker, number): begin
            for broker, each in opened.items()
            for number, begin in enumerate(each.begins)
        }
        return [QueueRange(key, begins[key], end) for key, end in self._ends.items()]

    async def reopen(self, acknowledged_to: Mapping[MessageQueue, int]) -> list[QueueRange]:
        """Open the session again after an uncertain response.

        Args:
            acknowledged_to: the end of the acknowledged messages, of queues where some are not.

        Returns:
            The ranges in which this attempt may have stored those.

        Raises:
            FencedError: a newer attempt has opened the session.
            DeliveryError, NotExactlyOnceError: as `open`.
        """
        before = self._ends
        await self._opened(self.session.epoch + 1, is_new=False)
        ranges = []
        for queue, offset in acknowledged_to.items():
            key = QueueKey(self._topic, queue.broker_name, queue.queue_id)
            if key in self._ends:
                start = max(before.get(key, 0), offset)
                ranges.append(QueueRange(key, start, self._ends[key]))
        return ranges

    async def _opened(self, epoch: int, *, is_new: bool) -> dict[str, OpenedSession]:
        """Open the session at all brokers of the topic, with one epoch."""
        loop = asyncio.get_running_loop()
        began_s, pause_s, conflicts = loop.time(), PAUSE_S, 0
        while True:
            try:
                return await self._open_each(epoch)
            except SessionFencedError as fenced:
                conflicts += 1
                if not is_new or conflicts > OPENINGS_MAX:
                    raise FencedError(self._fenced(fenced)) from None
                epoch = fenced.newest + 1
                continue
            except ResponseError as refused:
                if refused.code == ResponseCode.PRODUCER_BATCH_OLD:
                    raise FencedError(self._fenced(refused)) from None
                if refused.code not in _RETRIED:
                    raise self._impossible(refused) from None
                last: CometError = refused
            except (RemotingError, TopicNotFoundError, _BrokersAwayError, _NoTopicError) as error:
                last = error
            most_s = NEW_TOPIC_S if isinstance(last, _NoTopicError) else self._limits.delivery_s
            if loop.time() + pause_s > began_s + most_s:
                raise self._too_late(last, most_s) from None
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _open_each(self, epoch: int) -> dict[str, OpenedSession]:
        timeout = self._limits.request_s
        addresses = await self._sender.session_brokers(self._topic, timeout=timeout)
        if not addresses:
            raise _NoTopicError("it does not exist yet: expected a topic that was created")
        opened: dict[str, OpenedSession] = {}
        for broker in sorted(addresses):
            found = opened[broker] = await self._sender.open_session(
                self._topic,
                addresses[broker],
                self.session._replace(epoch=epoch),
                batch=self._origin.batch,
                brokers=sorted(addresses),
                expiry_ms=0 if self._is_named else DAY_MS,
                timeout=timeout,
            )
            epoch = found.epoch
            self.session = self.session._replace(epoch=epoch)
            if self._limits.safe and not found.is_safe:
                raise _BrokersAwayError(f"replicas or the disk of {broker} lag behind")
        away = frozenset[str]().union(*(each.brokers for each in opened.values())) - opened.keys()
        if away:
            raise _BrokersAwayError(
                f"{', '.join(sorted(away))} may have rows of earlier attempts, and has no master in"
                " the route"
            )
        self.brokers = frozenset(opened)
        self._ends = {
            QueueKey(self._topic, broker, number): end
            for broker, each in opened.items()
            for number, end in enumerate(each.ends)
        }
        return opened

    def _who(self) -> str:
        origin = self._origin
        return f"partition {origin.partition}, batch {origin.batch} of job {origin.job}"

    def _fenced(self, error: ResponseError) -> str:
        return (
            f"another attempt has taken over {self._who()} of topic {self._topic}, or a newer batch"
            f" was written: {error.remark}"
        )

    def _impossible(self, refused: ResponseError) -> NotExactlyOnceError:
        if refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return NotExactlyOnceError(
                f"topic {self._topic}: broker {refused.address or ''} has no producer sessions, as"
                " brokers of RocketMQ and older brokers of CometMQ"
            )
        return NotExactlyOnceError(
            f"topic {self._topic}: a broker does not open the producer session: {refused}"
        )

    def _too_late(self, last: CometError, most_s: float) -> CometError:
        text = (
            f"topic {self._topic}: the producer session of {self._who()} could not be opened for"
            f" {most_s:g} s: {last}"
        )
        is_sure = isinstance(last, _BrokersAwayError | _NoTopicError)
        return NotExactlyOnceError(text) if is_sure else DeliveryError(text)


class _NoTopicError(CometError):
    """Name servers know no such topic; a send may create it."""


class _BrokersAwayError(CometError):
    """Brokers are away whose rows have to be read, or replicas lag behind."""
