"""Sends messages of this slave to other brokers of their topics, while it acts as the master.

    scheduled message    as its producer sent it, without the delay
    half message         as a half message, so that the other broker checks it
    popped message       to the retry topic of its group

Each goes to a broker that name servers show as a master with write permission. A broker that fails
or refuses is passed over, until no other is left. A send without a response may be stored, and is
repeated: such messages are delivered twice.

Source: EscapeBridge, RocketMQ 5.3, which may make a half message of a redelivered message that was
part of a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from cometmq.broker.transactions.half_message import HalfMessage
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, InvalidMessageError
from cometmq.model.flags import SysFlag
from cometmq.model.topic import RETRY_PREFIX, TEMPLATE_TOPIC, Perm
from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.headers.send import SendMessageV2Request
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.protocol.record import RecordParts
from cometmq.remoting import RemotingClient, check
from cometmq.remoting.slices import decode

TIMEOUT_S: Final = 3.0
"""How long one message may take, at all brokers together."""
ROUTE_S: Final = 10.0
"""How long a route is used before it is requested again."""
ROUTES_MAX: Final = 1_000
BROKERS_MAX: Final = 3
"""Brokers that one message is sent to, one after the other."""
DEFAULT_QUEUES: Final = 4

_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
)
_OF_THIS_BROKER = (names.CLUSTER, names.MSG_REGION, names.TRACE_ON, names.WAIT)
_OF_SCHEDULED = (*_OF_THIS_BROKER, names.DELAY, names.TRAN_MSG)
_OF_HALF = (
    *_OF_THIS_BROKER,
    names.REAL_TOPIC,
    names.REAL_QID,
    names.TRANSACTION_CHECK_TIMES,
    names.TRAN_PREPARED_QUEUE_OFFSET,
)
_OF_RECORD = SysFlag.TRANSACTION_MASK | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class _Target(NamedTuple):
    """A broker that takes messages of a topic."""

    address: str
    broker_name: str
    queues: int


class OtherBrokers:
    """The other brokers of the topics that this broker has.

    Args:
        client: sends the requests.
        name_servers: returns the addresses of the name servers that know the routes.
        broker_name: of this broker, which gets nothing.
        group: the producer group of messages that name none.
    """

    def __init__(
        self,
        client: RemotingClient,
        name_servers: Callable[[], Iterable[str]],
        *,
        broker_name: str,
        group: str,
    ) -> None:
        self._client = client
        self._name_servers = name_servers
        self._broker_name = broker_name
        self._group = group
        self._routes: dict[str, tuple[float, list[_Target]]] = {}
        """The targets of each topic, and until when they are used."""
        self._sent = 0

    async def send_scheduled(self, topic: str, record: RecordParts) -> None:
        """Send a scheduled message to its topic.

        Raises:
            CometError: no other broker of the topic has stored it.
        """
        properties = _without(decode_properties(record.properties), _OF_SCHEDULED)
        await self._send(topic, record, properties, 0)

    async def send_half(self, half: HalfMessage) -> None:
        """Send an undecided half message to its topic.

        Raises:
            CometError: no other broker of the topic has stored it.
        """
        topic, _ = half.target()
        properties = _without(half.properties, _OF_HALF) | {names.TRAN_MSG: "true"}
        await self._send(topic, half.record, properties, SysFlag.TRANSACTION_PREPARED)

    async def send_popped(self, retry_topic: str, topic: str, record: RecordParts) -> None:
        """Send a popped message to a retry topic, at a broker that has that or the popped topic.

        Raises:
            CometError: no such broker has stored it.
        """
        properties = _without(decode_properties(record.properties), _OF_THIS_BROKER)
        await self._send(retry_topic, record, properties, 0, popped=topic)

    async def _send(
        self,
        topic: str,
        record: RecordParts,
        properties: Mapping[str, str],
        flag: int,
        popped: str = "",
    ) -> None:
        failure: CometError = CometError(f"topic {topic[:300]} has no other broker")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                targets = await self._targets(topic)
                if not targets and popped:
                    targets = [each._replace(queues=1) for each in await self._targets(popped)]
                self._sent += 1
                for number in range(min(len(targets), BROKERS_MAX)):
                    target = targets[(self._sent + number) % len(targets)]
                    try:
                        await self._send_to(target, topic, record, properties, flag)
                    except CometError as problem:
                        failure = problem
                        self._routes.pop(topic, None)
                    else:
                        return
        except TimeoutError:
            failure = CometError(f"topic {topic[:300]}: no response within {TIMEOUT_S:g} s")
        raise failure

    async def _send_to(
        self,
        target: _Target,
        topic: str,
        record: RecordParts,
        properties: Mapping[str, str],
        flag: int,
    ) -> None:
        times = record.reconsume_times
        header = SendMessageV2Request(
            producer_group=properties.get(names.PGROUP) or self._group,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUES,
            queue_id=self._sent % target.queues,
            sys_flag=record.sys_flag & ~_OF_RECORD | flag,
            born_timestamp=record.born_time_ms,
            flag=record.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=times,
            unit_mode=False,
            # The retry is counted already, and is none that goes to the dead letters.
            max_reconsume_times=times + 1 if topic.startswith(RETRY_PREFIX) else None,
            batch=False,
            bname=target.broker_name,
        )
        response = await self._client.call(
            target.address,
            RequestCode.SEND_MESSAGE_V2,
            header,
            record.body,
            timeout=TIMEOUT_S,
        )
        if response.code not in _STORED:
            check(response)

    async def _targets(self, topic: str) -> list[_Target]:
        """Return the brokers that take messages of a topic.

        Raises:
            CometError: no name server has responded.
        """
        now_s = asyncio.get_running_loop().time()
        until_s, targets = self._routes.get(topic, (0.0, []))
        if now_s < until_s:
            return targets
        self._routes.pop(topic, None)
        targets = await self._requested_targets(topic)
        while len(self._routes) >= ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        if targets:
            self._routes[topic] = now_s + ROUTE_S, targets
        return targets

    async def _requested_targets(self, topic: str) -> list[_Target]:
        failure: CometError = CometError("no name server is known")
        header = GetRouteinfoByTopicRequest(topic=topic)
        for name_server in self._name_servers():
            try:
                response = await self._client.call(
                    name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout=TIMEOUT_S
                )
                if response.code == ResponseCode.TOPIC_NOT_EXIST:
                    return []
                return self._targets_in(await decode(TopicRouteData, check(response).body))
            except CometError as problem:
                failure = problem
        raise failure

    def _targets_in(self, route: TopicRouteData) -> list[_Target]:
        masters = {data.broker_name: data.broker_addrs.get(0) for data in route.broker_datas}
        return [
            _Target(address, row.broker_name, row.write_queue_nums)
            for row in route.queue_datas
            if row.perm & Perm.WRITE
            and row.write_queue_nums > 0
            and row.broker_name != self._broker_name
            and (address := masters.get(row.broker_name))
        ]


def _without(properties: Mapping[str, str], dropped: Iterable[str]) -> dict[str, str]:
    kept = dict(properties)
    for name in dropped:
        kept.pop(name, None)
    if any("\x01" in value or "\x02" in value for value in kept.values()):
        raise InvalidMessageError("a property has a separator in its value")
    return kept
