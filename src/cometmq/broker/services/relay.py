"""Hands requests of administrators on to the consumer they are about, and its answer back.

The consumer is found by group and client id and asked over the connection it came by. A call ends
with its answer, after its time, or at once when the consumer's connection is lost.

Source: AdminBrokerProcessor.callConsumer and Broker2Client, RocketMQ 5.3 (codes and texts); that
a lost connection ends the call at once is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.broker.services.consumers import ConsumerRegistry
from cometmq.broker.services.members import Member
from cometmq.model.errors import RemotingError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.version import RUNNING_INFO_VERSION_MIN, version_name
from cometmq.remoting import CallTimeoutError

CALL_TIMEOUT_S: Final = 10.0
CALLS_MAX: Final = 1000
"""Relayed calls under way at a time; a further one is refused."""


class ConsumerRelay:
    """Calls consumers on behalf of others.

    Args:
        consumers: the groups that are online.
        timeout_s: how long one call may take.
    """

    def __init__(self, consumers: ConsumerRegistry, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._consumers = consumers
        self._timeout_s = timeout_s
        self._under_way = 0

    def find(self, group: str, client_id: str) -> Member:
        """The member to ask.

        Raises:
            ResponseError: it is not online, or too old to be asked (code 1).
        """
        member = self._consumers.find(group, client_id)
        if member is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        if member.version < RUNNING_INFO_VERSION_MIN:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{version_name(member.version)}> too low to"
                " finish, please upgrade it to V3_1_8_SNAPSHOT",
            )
        return member

    async def call(
        self,
        group: str,
        client_id: str,
        code: int,
        *,
        fields: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Command:
        """Ask one member of a group and return its answer, whatever its code.

        Raises:
            ResponseError: code 1 when it is not online, too old, or was lost; 207 when it did not
                answer in time; 2 when too many calls are under way.
        """
        member = self.find(group, client_id)
        if self._under_way >= CALLS_MAX:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY, f"{self._under_way} calls to consumers are in flight"
            )
        self._under_way += 1
        try:
            return await member.connection.call(
                code, body=body, fields=fields, timeout=timeout_s or self._timeout_s
            )
        except CallTimeoutError as problem:
            raise ResponseError(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{client_id}> Timeout: {problem}",
            ) from None
        except RemotingError as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{client_id}> Exception: {problem}",
            ) from None
        finally:
            self._under_way -= 1
