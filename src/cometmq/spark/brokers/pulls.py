"""The pull requests of one range of a queue.

The pulls of a range differ in two or three fields only; and where a connection is open and nobody
wants to see requests, a pull needs no task of its own.

Source: PullAPIWrapper, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Final

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.pulls import Pull
from cometmq.client.filters import Filter
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.codes import LanguageCode, RequestCode
from cometmq.protocol.command import Command, encode_head
from cometmq.protocol.headers.base import encode_fields
from cometmq.remoting import CallTimeoutError, Connection, RemotingClient
from cometmq.spark.brokers.placing import queue_of
from cometmq.spark.offsets import QueueRange

HOLD_MS: Final = 1_000
"""How long a broker waits for a message before it says that there is none."""
ANSWER_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Read:
    """What to read, and how; see `BrokerSession.read`."""

    range: QueueRange
    filter: Filter
    batch_size: int
    timeout_s: float
    group: str
    skip_expired: bool = False


@dataclass(slots=True, eq=False)
class _Waiting:
    """A pull over an open connection: passes its answer on."""

    answer: asyncio.Future[Command]
    remoting: RemotingClient
    connection: Connection
    began_s: float

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return self.answer.done()

    def set_result(self, result: Command) -> None:
        """The answer has come."""
        self.answer.set_result(result)

    def set_exception(self, exception: Exception) -> None:
        """None will; a connection over which nothing came meanwhile is given up."""
        if isinstance(exception, CallTimeoutError):
            self.remoting.note_silence(self.connection, self.began_s)
        self.answer.set_exception(exception)


class Pulls:
    """Asks for parts of a range.

    Args:
        instance: of the client.
        read: what to read.
    """

    def __init__(self, instance: ClientCore, read: Read) -> None:
        self._remoting = instance.remoting
        self._language = LanguageCode[instance.settings.language]
        self._fields = {hold_ms: _fields(read, hold_ms) for hold_ms in (0, HOLD_MS)}

    def ask(self, address: str, start: int, count: int, *, holds: bool) -> asyncio.Future[Command]:
        """Send a pull; its answer, whatever it says, or how it failed is in the future.

        Args:
            address: of the broker.
            start: first offset.
            count: messages wanted.
            holds: whether the broker waits a moment if there is nothing.

        Raises:
            RemotingError: too many requests wait already; nothing was sent.
        """
        fields = self._fields[HOLD_MS if holds else 0]
        fields["queueOffset"], fields["maxMsgNums"] = str(start), str(count)
        connection = self._remoting.ready(address)
        if connection is None:
            return asyncio.ensure_future(self._call(address, dict(fields)))
        loop = asyncio.get_running_loop()
        waiting = _Waiting(loop.create_future(), self._remoting, connection, monotonic())
        opaque = connection.begin(waiting, ANSWER_S)
        connection.write(
            encode_head(
                RequestCode.PULL_MESSAGE, opaque=opaque, fields=fields, language=self._language
            )
        )
        return waiting.answer

    async def _call(self, address: str, fields: dict[str, str]) -> Command:
        code = RequestCode.PULL_MESSAGE
        return await self._remoting.call(address, code, fields=fields, timeout=ANSWER_S)


def _fields(read: Read, hold_ms: int) -> dict[str, str]:
    pull = Pull(
        group=read.group,
        queue=queue_of(read.range.key),
        wanted=read.filter,
        max_messages=read.batch_size,
        hold_ms=hold_ms,
    )
    return encode_fields(pull.header(QueueOffset(read.range.start)))
