"""Handles heartbeats, unregistration, members of a group and checks of a subscription.

HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46).
A heartbeat is checked as a whole before any of it is registered. Source: ClientManageProcessor and
ConsumerManageProcessor, RocketMQ 5.3, which check fewer names and no counts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator
from functools import partial
from typing import NamedTuple

from cometmq.broker.checks import (
    INT_MAX,
    LONG_MAX,
    check_body,
    check_client_id,
    check_group,
    check_number,
    check_subscribed_topic,
    invalid,
)
from cometmq.broker.clients.member_subscriptions import Subscriptions, subscriptions_of
from cometmq.broker.core import Core
from cometmq.broker.filters.subscriptions import (
    Subscription,
    are_made_quickly,
    check_client_subscription,
)
from cometmq.broker.prerequisites import after_prerequisites
from cometmq.broker.topics.table import internal_topic
from cometmq.model.errors import CometError, InvalidNameError, ResponseError
from cometmq.model.flags import TopicSysFlag
from cometmq.model.topic import TopicConfig, retry_topic
from cometmq.protocol.bodies.group import GetConsumerListByGroupResponseBody
from cometmq.protocol.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.consumer import (
    GetConsumerListByGroupRequest,
    HeartbeatResponse,
    UnregisterClientRequest,
)
from cometmq.protocol.subscription import is_tag_kind
from cometmq.remoting import Peer, Request, Response
from cometmq.remoting.slices import Slices, decode, decode_at_once, off_loop

log = logging.getLogger(__name__)

SMALL_BYTES_MAX = 16 * 1024
"""Larger heartbeats are read off the event loop, and registered in slices."""
BODY_BYTES_MAX = 1024 * 1024
GROUPS_MAX = 1_000
SUBSCRIPTIONS_MAX = 5_000
TAGS_MAX = 20_000
EXPRESSIONS_MAX = 100
"""Limits of one heartbeat."""
ACTIVELY = "CONSUME_ACTIVELY"
CLUSTERING = "CLUSTERING"


class _GroupOfHeartbeat(NamedTuple):
    """A group of a heartbeat."""

    consumer: ConsumerData
    subscriptions: list[Subscription]
    view: Subscriptions


class HeartbeatHandler:
    """Registers clients, and returns the members of groups.

    Args:
        core: of the broker; groups and their retry topics are created in its tables.
    """

    def __init__(self, core: Core) -> None:
        self._consumers = core.consumers
        self._producers = core.producers
        self._topics = core.topics
        self._groups = core.groups
        self._settings = core.settings

    def heartbeat(self, request: Request) -> Response | Awaitable[Response]:
        """Register the client in its groups, which are created first if that is allowed."""
        _check_limit("bytes", len(request.body), BODY_BYTES_MAX)
        is_small = len(request.body) <= SMALL_BYTES_MAX
        data = decode_at_once(HeartbeatData, request.body) if is_small else None
        if data is None or not are_made_quickly(_subscriptions(data)):
            request.is_exclusive = True
            return self._read_and_register(request)
        joined = _joined_groups(data)
        self._check_room(request, data)
        if any(self._is_new(consumer) for consumer in data.consumer_data_set):
            request.is_exclusive = True  # an unregistration of this client must not overtake it
            return self._create_and_register(request, data, joined)
        wants_all = False
        if not request.connection.closed:  # else its members would stay until they expire
            for each in joined:
                wants_all |= self._register(request.connection, data, each)
            for producer in data.producer_data_set:
                self._register_producer(request, data, producer)
        return _response(data, wants_all)

    async def _read_and_register(self, request: Request) -> Response:
        data, joined = await off_loop(partial(_read, request.body))
        self._check_room(request, data)
        return await self._create_and_register(request, data, joined)

    def _check_room(self, request: Request, data: HeartbeatData) -> None:
        groups = (producer.group_name for producer in data.producer_data_set)
        self._producers.check_room(request.connection, groups)

    def _is_new(self, consumer: ConsumerData) -> bool:
        """Return whether a group or its retry topic has to be created."""
        is_new = self._groups.may_create(consumer.group_name)
        return is_new or self._missing_retry_topic(consumer) is not None

    def _missing_retry_topic(self, consumer: ConsumerData) -> TopicConfig | None:
        config = self._groups.get(consumer.group_name)
        name = retry_topic(consumer.group_name)
        if config is None or config.retry_queue_nums <= 0 or name in self._topics:
            return None
        if self._is_refused(consumer):
            return None
        sys_flag = TopicSysFlag.UNIT_SUB if consumer.unit_mode else 0
        order = any(self._is_ordered(entry.topic) for entry in consumer.subscription_data_set)
        try:
            return internal_topic(name, config.retry_queue_nums, sys_flag=sys_flag, order=order)
        except InvalidNameError as problem:
            log.warning("cannot create the retry topic group=%s: %s", consumer.group_name, problem)
            return None

    def _is_ordered(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.order

    async def _create_and_register(
        self, request: Request, data: HeartbeatData, joined: list[_GroupOfHeartbeat]
    ) -> Response:
        slices = Slices()
        try:
            await self._create(request, data, slices)
        except CometError:  # the groups that exist are served all the same
            await self._register_all(request, data, joined, slices)
            raise
        return await self._register_all(request, data, joined, slices)

    async def _create(self, request: Request, data: HeartbeatData, slices: Slices) -> None:
        """Create the groups without settings and the retry topics that do not exist.

        Raises:
            ResponseError: the client may not create one of the groups; the others are created.
        """
        groups = {
            consumer.group_name: None
            async for consumer in slices.each(data.consumer_data_set)
            if self._groups.may_create(consumer.group_name)
        }
        try:
            await self._groups.create_all(groups, request)
        finally:
            await self._topics.create_all(
                [
                    topic
                    async for consumer in slices.each(data.consumer_data_set)
                    if (topic := self._missing_retry_topic(consumer)) is not None
                ]
            )

    async def _register_all(
        self, request: Request, data: HeartbeatData, joined: list[_GroupOfHeartbeat], slices: Slices
    ) -> Response:
        connection = request.connection
        wants_all = False
        async for each in slices.each(joined):
            if not connection.closed:  # else its members would stay until they expire
                wants_all |= self._register(connection, data, each)
        async for producer in slices.each(data.producer_data_set):
            if not connection.closed:
                self._register_producer(request, data, producer)
        return _response(data, wants_all)

    def unregister(self, request: Request) -> Response:
        """Remove the client from the groups that the request names."""
        header = request.header(UnregisterClientRequest)
        if header.producer_group:
            self._producers.unregister(request.connection, header.client_id, header.producer_group)
        if header.consumer_group:
            group = self._groups.get(header.consumer_group)
            self._consumers.unregister(
                request.connection,
                header.client_id,
                header.consumer_group,
                notify=group is None or group.notify_consumer_ids_changed_enable,
            )
        return Response()

    def consumer_list(self, request: Request) -> Response:
        """Return the client ids of a group."""
        header = request.header(GetConsumerListByGroupRequest)
        client_ids = self._consumers.client_ids(header.consumer_group)
        if not client_ids:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        body = GetConsumerListByGroupResponseBody(consumer_id_list=client_ids)
        return Response(body=body.encode())

    async def check_client(self, request: Request) -> Response:
        """Check whether the broker can filter by a subscription."""
        check_body(request, BODY_BYTES_MAX)
        body = await decode(CheckClientRequestBody, request.body)
        enabled = self._settings().enable_property_filter
        check = partial(check_client_subscription, body.subscription_data, enabled)
        await after_prerequisites(check)
        return Response()

    def _register_producer(
        self, request: Request, data: HeartbeatData, producer: ProducerData
    ) -> None:
        self._producers.register(
            request.connection, data.client_id, producer.group_name, request.command.access_key
        )

    def _register(self, connection: Peer, data: HeartbeatData, joined: _GroupOfHeartbeat) -> bool:
        """Register one group; return whether the client must send all its subscriptions."""
        consumer, subscriptions, view = joined
        name = consumer.group_name
        config = self._groups.get(name)
        if config is None or self._is_refused(consumer):
            return False
        wants_all = self._is_outdated(data, name)
        self._consumers.register(
            connection,
            data.client_id,
            name,
            kind=consumer.consume_type or "",
            model=consumer.message_model or "",
            consume_from=consumer.consume_from_where or "",
            subscriptions=None if data.without_sub else subscriptions,
            view=view,
            notify=config.notify_consumer_ids_changed_enable,
        )
        group = self._consumers.group(name)
        if group is not None and data.heartbeat_fingerprint != 0:
            group.fingerprint = data.heartbeat_fingerprint
        return wants_all

    def _is_outdated(self, data: HeartbeatData, name: str) -> bool:
        """Return whether a heartbeat has newer subscriptions than a group."""
        group = self._consumers.group(name)
        if group is None or not group.subscriptions:
            return data.without_sub
        known = group.fingerprint
        return known is not None and known != data.heartbeat_fingerprint

    def _is_refused(self, consumer: ConsumerData) -> bool:
        return (
            self._settings().reject_pull_consumer_enable
            and consumer.consume_type == ACTIVELY
            and consumer.message_model == CLUSTERING
        )


def _response(data: HeartbeatData, wants_all: bool) -> Response:
    is_second_form = data.heartbeat_fingerprint != 0
    return Response(
        header=HeartbeatResponse(
            is_support_heart_beat_v2=True, is_sub_change=wants_all or not is_second_form
        )
    )


def _read(body: bytes) -> tuple[HeartbeatData, list[_GroupOfHeartbeat]]:
    """Decode, check and prepare a large heartbeat; off the event loop."""
    data = HeartbeatData.decode(body)
    return data, _joined_groups(data)


def _joined_groups(data: HeartbeatData) -> list[_GroupOfHeartbeat]:
    """Check a heartbeat; return its groups with what they subscribe."""
    _check_content(data)
    joined = []
    for consumer in data.consumer_data_set:
        subscriptions = [Subscription(entry) for entry in consumer.subscription_data_set]
        joined.append(_GroupOfHeartbeat(consumer, subscriptions, subscriptions_of(subscriptions)))
    return joined


def _subscriptions(data: HeartbeatData) -> Iterator[SubscriptionData]:
    for consumer in data.consumer_data_set:
        yield from consumer.subscription_data_set


def _check_content(data: HeartbeatData) -> None:
    subscriptions = list(_subscriptions(data))
    _check_limit("groups", len(data.consumer_data_set) + len(data.producer_data_set), GROUPS_MAX)
    _check_limit("subscriptions", len(subscriptions), SUBSCRIPTIONS_MAX)
    tags = sum(len(entry.code_set or ()) + len(entry.tags_set or ()) for entry in subscriptions)
    _check_limit("tags and codes", tags, TAGS_MAX)
    expressions = sum(not is_tag_kind(entry.expression_type) for entry in subscriptions)
    _check_limit("SQL92 subscriptions", expressions, EXPRESSIONS_MAX)
    for entry in subscriptions:
        check_number("subVersion", entry.sub_version, -LONG_MAX - 1, LONG_MAX)
        for code in entry.code_set or ():
            check_number("codeSet", code, -INT_MAX - 1, INT_MAX)
    check_client_id(data.client_id)
    for producer in data.producer_data_set:
        check_group(producer.group_name)
    for consumer in data.consumer_data_set:
        check_group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            check_subscribed_topic(subscription.topic)


def _check_limit(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise invalid(f"a heartbeat with {count} {what}, expected at most {limit}")
