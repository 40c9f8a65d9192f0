"""Relays requests of administrators to consumers, and their responses back.

GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309) go to one client, found by group
and client id, over the connection of its heartbeats; its response is returned unchanged.
INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) sends GET_CONSUMER_STATUS_FROM_CLIENT (221) to every
member of a group and collects the responses. A call ends with its response, at its timeout, or at
once when the connection is lost.

Source: AdminBrokerProcessor and Broker2Client, RocketMQ 4.9 and 5.3 (codes and remarks). Unlike
RocketMQ, members are called at the same time, those without a response are left out, and a lost
connection ends a call at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.clients.members import Member
from cometmq.broker.core import Core
from cometmq.model.errors import InvalidMessageIdError, RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.bodies.group import GetConsumerStatusBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.consumer import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
)
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.record import split_record
from cometmq.protocol.version import RUNNING_INFO_VERSION_MIN, version_name
from cometmq.remoting import CallTimeoutError, Request, Response
from cometmq.remoting.slices import decode, encode
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 10.0
CALLS_MAX: Final = 1000
"""Relayed calls in flight at a time; a further one is refused."""
STATUS_TIMEOUT_S: Final = 5.0
MEMBERS_MAX: Final = 200
"""Members of one group whose offsets are requested; further ones are left out."""


class ConsumerRelay:
    """Calls consumers for other clients.

    Args:
        consumers: the groups that are online.
        timeout_s: how long one call may take.
    """

    def __init__(self, consumers: ConsumerRegistry, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._consumers = consumers
        self._timeout_s = timeout_s
        self._in_flight = 0

    def find(self, group: str, client_id: str) -> Member:
        """Return the member that a request is for.

        Raises:
            ResponseError: it is not online, or too old for the request (code 1).
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
        """Send a request to one member of a group; return its response of any code.

        Raises:
            ResponseError: code 1 when it is not online, too old, or was lost; 207 when it did not
                respond in time; 2 when too many calls are in flight.
        """
        member = self.find(group, client_id)
        if self._in_flight >= CALLS_MAX:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY, f"{self._in_flight} calls to consumers are in flight"
            )
        self._in_flight += 1
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
            self._in_flight -= 1


class RelayHandler:
    """Relays requests to consumers, and their responses back.

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._relay = ConsumerRelay(core.consumers)
        self._consumers = core.consumers
        self._store = core.store
        self._cold_reads = core.cold_reads
        self._topics = core.topics
        self._groups = core.groups
        self._broker_name = core.settings().broker_name
        self._failures = RateLimitedLog(log, "consumers did not return their offsets")

    async def running_info(self, request: Request) -> Response:
        """Return the running information of one consumer."""
        header = request.header(GetConsumerRunningInfoRequest)
        response = await self._relay.call(
            header.consumer_group, header.client_id, request.code, fields=request.command.fields
        )
        return _relayed(response)

    async def consume_directly(self, request: Request) -> Response:
        """Let one consumer consume one message now; return the result."""
        header = request.header(ConsumeMessageDirectlyRequest)
        client_id = header.client_id or ""
        self._relay.find(header.consumer_group, client_id)
        response = await self._relay.call(
            header.consumer_group,
            client_id,
            request.code,
            fields=self._fields_of_message(request.command.fields, header),
            body=await self._record(header),
        )
        return _relayed(response)

    async def consumer_status(self, request: Request) -> Response:
        """Return the offsets of the members of a group, by client id."""
        header = request.header(InvokeBrokerToGetConsumerStatusRequest)
        members = self._members(header.group, header.client_addr)
        fields = {"topic": header.topic, "group": header.group}
        tables = await asyncio.gather(
            *(self._offsets_of(header.group, member, fields) for member in members)
        )
        table = {
            member.client_id: offsets
            for member, offsets in zip(members, tables, strict=True)
            if offsets is not None
        }
        return Response(body=await encode(GetConsumerStatusBody(consumer_table=table)))

    # --- the message of CONSUME_MESSAGE_DIRECTLY ----------------------------------------------

    async def _record(self, header: ConsumeMessageDirectlyRequest) -> bytes:
        if not header.msg_id:
            return b""
        try:
            log_offset = decode_offset_id(header.msg_id).log_offset
        except InvalidMessageIdError as problem:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from problem
        for _ in range(2):  # the record, then its unit
            await self._cold_reads.run(self._store.cold_record(log_offset))
        record = self._store.record_at(log_offset)
        if record is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {log_offset}"
            )
        # the right to consume is that of the topic that the request names, or of the group
        retries = RETRY_PREFIX + header.consumer_group
        if header.topic and split_record(record).topic not in (header.topic, retries):
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"the message at offset {log_offset} is of another topic than {header.topic}",
            )
        return bytes(record)

    def _fields_of_message(
        self, fields: Mapping[str, str], header: ConsumeMessageDirectlyRequest
    ) -> dict[str, str]:
        extended = dict(fields) | {"brokerName": self._broker_name}
        topic = self._topics.get(header.topic) if header.topic else None
        if topic is not None:
            extended["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._groups.get(header.consumer_group)
        if group is not None:
            extended["groupSysFlag"] = str(group.group_sys_flag)
        return extended

    # --- the offsets of the members -----------------------------------------------------------

    def _members(self, name: str, client_id: str | None) -> list[Member]:
        group = self._consumers.group(name)
        if group is None or not group.members:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{name}]"
            )
        members = {member.client_id: member for member in group.members.values()}
        if client_id:
            return [members[client_id]] if client_id in members else []
        return list(members.values())[:MEMBERS_MAX]

    async def _offsets_of(
        self, group: str, member: Member, fields: Mapping[str, str]
    ) -> dict[MessageQueue, int] | None:
        try:
            response = await self._relay.call(
                group,
                member.client_id,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                fields=fields,
                timeout_s=STATUS_TIMEOUT_S,
            )
            if response.code != ResponseCode.SUCCESS:
                return None
            body = await decode(GetConsumerStatusBody, response.body)
            return body.message_queue_table
        except ResponseError as problem:
            self._failures.add(
                "consumer did not return its offsets client=%s: %s", member.client_id, problem
            )
            return None


def _relayed(response: Command) -> Response:
    fields = response.fields if response.has_fields else None
    return Response(response.code, response.remark, fields=fields, body=response.body)
