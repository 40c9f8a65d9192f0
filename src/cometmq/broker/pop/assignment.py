"""Handles QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401) and 402: assignment by the broker.

A member asks which queues it reads, and whether by pull or by pop. The broker knows the members
from their heartbeats, and the queues of all brokers from the route of the topic, which it requests
from the name servers.

    pull    the queues that the strategy allocates to the member
    pop     every broker as a whole (queue -1), or the share of the member and of some that follow

Source: QueryAssignmentProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.checks import check_group, check_is_master, check_number
from cometmq.broker.pop.request_modes import RequestModes
from cometmq.broker.prerequisites import after_prerequisites
from cometmq.model.allocation import averagely, by_circle
from cometmq.model.errors import CometError, ResponseError, StoreError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import LMQ_PREFIX, RETRY_PREFIX, Perm
from cometmq.protocol.bodies.heartbeat import MessageModel
from cometmq.protocol.bodies.pop import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.remoting import Request, Response, check
from cometmq.remoting.slices import Slices, decode, encode, off_loop

if TYPE_CHECKING:
    from cometmq.broker.core import Core
    from cometmq.broker.pop.config import PopSettings

ROUTE_S: Final = 30.0
"""How long a route is used before it is requested again."""
UNKNOWN_S: Final = 1.0
"""How long a topic without a route is not requested again."""
ROUTES_MAX: Final = 10_000
TIMEOUT_S: Final = 3.0
QUEUES_MAX: Final = 100_000
SHARE_MAX: Final = 65_535

_Strategy = Callable[[Sequence[MessageQueue], int, int], list[MessageQueue]]
_STRATEGIES: Final[dict[str, _Strategy]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


class _Route(NamedTuple):
    """The readable queues of a topic, on all brokers; None if it has no route."""

    queues: list[MessageQueue] | None
    until_s: float


class Routes:
    """The routes of topics, as the name servers have them.

    Args:
        core: of the broker.
        name_servers: returns the addresses of the name servers.
    """

    def __init__(self, core: Core, name_servers: Callable[[], Iterable[str]]) -> None:
        self._client = core.client
        self._name_servers = name_servers
        self._routes: dict[str, _Route] = {}
        self._requests: dict[str, asyncio.Future[_Route]] = {}

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the readable queues of a topic, sorted; None if its route is not known."""
        known = self._routes.get(topic)
        if known is None or known.until_s <= asyncio.get_running_loop().time():
            request = self._requests.get(topic)
            if request is None:
                request = self._requests[topic] = asyncio.ensure_future(self._request(topic, known))
                request.add_done_callback(lambda _: self._requests.pop(topic, None))
            known = await asyncio.shield(request)
        return known.queues

    async def _request(self, topic: str, known: _Route | None) -> _Route:
        queues, lives_s = None, UNKNOWN_S
        try:
            async with asyncio.timeout(TIMEOUT_S):
                queues = await self._requested(topic)
        except (CometError, TimeoutError):
            queues = None if known is None else known.queues
        if queues is not None:
            lives_s = ROUTE_S
        route = _Route(queues, asyncio.get_running_loop().time() + lives_s)
        while len(self._routes) >= ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        self._routes[topic] = route
        return route

    async def _requested(self, topic: str) -> list[MessageQueue] | None:
        failure: CometError = CometError("no name server is known")
        header = GetRouteinfoByTopicRequest(topic=topic)
        for address in self._name_servers():
            try:
                code = RequestCode.GET_ROUTEINFO_BY_TOPIC
                response = await self._client.call(address, code, header, timeout=TIMEOUT_S)
                if response.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
                route = await decode(TopicRouteData, check(response).body)
                return await off_loop(partial(_queues_in, topic, route))
            except CometError as problem:
                failure = problem
        raise failure


def _queues_in(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    found: list[MessageQueue] = []
    for row in route.queue_datas:
        if row.perm & Perm.READ:
            count = min(row.read_queue_nums, QUEUES_MAX - len(found))
            found += [MessageQueue(topic, row.broker_name, n) for n in range(count)]
    return sorted(found)


class AssignmentHandler:
    """Handles queries for assignments, and changes of request modes.

    Args:
        core: of the broker.
        routes: the routes of topics.
        modes: the request modes.
        settings: returns the current settings.
    """

    def __init__(
        self,
        core: Core,
        routes: Routes,
        modes: RequestModes,
        settings: Callable[[], PopSettings],
    ) -> None:
        self._topics = core.topics
        self._groups = core.groups
        self._consumers = core.consumers
        self._role = core.role
        self._broker_name = core.settings().broker_name
        self._routes = routes
        self._modes = modes
        self._settings = settings

    # --- assignments ----------------------------------------------------------------------------

    def query(self, request: Request) -> Awaitable[Response]:
        """Return the queues of a member."""
        return self._query(QueryAssignmentRequestBody.decode(request.body))

    async def _query(self, asked: QueryAssignmentRequestBody) -> Response:
        settings = self._settings()
        mode, share = self._mode(asked, settings)
        queues = await self._queues(asked, mode, share, settings)
        found = None
        if queues is not None:
            found = [
                MessageQueueAssignment(message_queue=queue, mode=mode)
                async for queue in Slices().each(queues)
            ]
        body = QueryAssignmentResponseBody(message_queue_assignments=found)
        return Response(body=await encode(body))

    def _mode(
        self, asked: QueryAssignmentRequestBody, settings: PopSettings
    ) -> tuple[MessageRequestMode, int]:
        known = self._modes.find(asked.consumer_group, asked.topic)
        if known is not None and known.mode is not None:
            return known.mode, known.pop_share_queue_num
        if asked.topic.startswith(RETRY_PREFIX):
            return MessageRequestMode.PULL, 0
        mode = MessageRequestMode(settings.default_message_request_mode)
        return mode, settings.default_pop_share_queue_num

    async def _queues(
        self,
        asked: QueryAssignmentRequestBody,
        mode: MessageRequestMode,
        share: int,
        settings: PopSettings,
    ) -> list[MessageQueue] | None:
        if asked.topic.startswith(LMQ_PREFIX):
            return [MessageQueue(asked.topic, self._broker_name, 0)]
        queues = await self._routes.queues(asked.topic)
        if not queues:
            return None
        if asked.message_model == MessageModel.BROADCASTING:
            return queues
        strategy = _STRATEGIES.get(asked.strategy_name or "")
        clients = sorted(set(self._consumers.client_ids(asked.consumer_group)))
        if strategy is None or not clients:
            return None
        if not settings.server_load_balancer_enable:
            return queues
        if mode is MessageRequestMode.POP:
            return await self._popped(asked, queues, clients, share, strategy)
        if asked.client_id not in clients:
            return []
        return strategy(queues, clients.index(asked.client_id), len(clients))

    async def _popped(
        self,
        asked: QueryAssignmentRequestBody,
        queues: list[MessageQueue],
        clients: list[str],
        share: int,
        strategy: _Strategy,
    ) -> list[MessageQueue]:
        members = len(clients)
        if share <= 0 or share >= members - 1:
            brokers = {queue.broker_name: None async for queue in Slices().each(queues)}
            return [MessageQueue(asked.topic, name, -1) for name in brokers]
        if asked.client_id not in clients:
            return []
        index = clients.index(asked.client_id)
        if members > len(queues):
            return [queues[index % len(queues)]]
        shared: dict[MessageQueue, None] = {}
        async for number in Slices().each(range(share + 1)):
            shared.update(dict.fromkeys(strategy(queues, (index + number) % members, members)))
        return list(shared)

    # --- modes ----------------------------------------------------------------------------------

    async def set_mode(self, request: Request) -> Response:
        """Set whether a group reads a topic by pull or by pop."""
        asked = SetMessageRequestModeRequestBody.decode(request.body)
        check_is_master(self._role)
        if asked.topic.startswith(RETRY_PREFIX):
            raise ResponseError(
                ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"
            )
        if self._topics.get(asked.topic) is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{asked.topic[:300]}] not exist"
            )
        check_group(asked.consumer_group)
        group = asked.consumer_group
        if await after_prerequisites(lambda: self._groups.resolve(group), request) is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
            )
        check_number("popShareQueueNum", asked.pop_share_queue_num, -1, SHARE_MAX)
        try:
            await self._modes.set(asked)
        except StoreError as problem:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from problem
        return Response()

    async def all_modes(self, request: Request) -> Response:
        """Return all request modes."""
        return Response(body=await encode(self._modes.body()))
