"""Handles requests of tools that create, change, show and delete consumer groups.

Source: AdminBrokerProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from cometmq.broker.checks import (
    INT_MAX,
    LONG_MAX,
    check_body,
    check_is_master,
    check_number,
    invalid,
)
from cometmq.broker.core import Core
from cometmq.broker.table_pages import check_whole, first_of_page, page_of
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.group import (
    CUSTOMIZED,
    EXPONENTIAL,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from cometmq.model.topic import check_group_name
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.group import (
    GroupForbidden,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    decode_group,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.group import (
    DeleteSubscriptionGroupRequest,
    GetSubscriptionGroupConfigRequest,
    UpdateAndGetGroupForbiddenRequest,
)
from cometmq.protocol.headers.table_page import (
    GetAllSubscriptionGroupRequest,
    GetAllSubscriptionGroupResponse,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import LENIENT_BYTES_MAX, Slices, decode, encode, off_loop

log = logging.getLogger(__name__)

GROUPS_AT_ONCE_MAX = 10_000
GROUP_BYTES_MAX = 64 * 1024
GROUPS_BYTES_MAX = 4 * 1024 * 1024
"""Limits of the bodies that describe one group and many."""
RETRY_QUEUES_MAX = 1024
RETRY_DELAYS_MAX = 128
RETRY_DELAY_MS_MAX = 365 * 24 * 3600 * 1000
"""Limits of a retry policy: the number of its delays, and one of them."""
NAME_CHARS_MAX = 512


class GroupHandler:
    """Creates, changes, shows and deletes groups.

    Args:
        core: of the broker.
        forget: removes a deleted group from pop consumption.
    """

    def __init__(self, core: Core, forget: Callable[[str], Awaitable[None]]) -> None:
        self._groups = core.groups
        self._role = core.role
        self._forget_offsets = core.offsets.forget_group
        self._forget_statistics = core.stats.forget_group
        self._forget_pops = forget
        self._created = core.measures.timings.groups

    async def put(self, request: Request) -> Response:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        check_body(request, GROUP_BYTES_MAX)
        read = partial(decode_group, request.body)
        small = len(request.body) <= LENIENT_BYTES_MAX
        return await self._put([read() if small else await off_loop(read)], request)

    async def put_list(self, request: Request) -> Response:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): all of them, or none."""
        check_body(request, GROUPS_BYTES_MAX)
        configs = (await decode(SubscriptionGroupList, request.body)).group_config_list
        if len(configs) > GROUPS_AT_ONCE_MAX:
            raise invalid(f"{len(configs)} groups, expected at most {GROUPS_AT_ONCE_MAX}")
        return await self._put(configs, request)

    async def _put(self, configs: list[SubscriptionGroupConfig], request: Request) -> Response:
        with self._created.measured():
            return await self._change(configs, request)

    async def _change(self, configs: list[SubscriptionGroupConfig], request: Request) -> Response:
        check_is_master(self._role)
        slices = Slices()
        changes = {}
        async for config in slices.each(configs):
            _check(config)
            changes[config.group_name] = _merged(config)
        if await self._groups.change(changes):
            async for config in slices.each(configs):
                log.info(
                    "group created or updated group=%s consumes=%s retries_max=%d peer=%s",
                    config.group_name,
                    config.consume_enable,
                    config.retry_max_times,
                    request.connection.peer_text,
                )
        return Response()

    async def delete(self, request: Request) -> Response:
        """DELETE_SUBSCRIPTIONGROUP (207)."""
        check_is_master(self._role)
        header = request.header(DeleteSubscriptionGroupRequest)
        name = header.group_name
        if await self._groups.delete(name):
            log.info("group deleted group=%s peer=%s", name, request.connection.peer_text)
        if header.clean_offset or header.remove_offset:
            await self._forget_offsets(name)
        await self._forget_statistics(name)
        await self._forget_pops(name)
        return Response()

    def show(self, request: Request) -> Response:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""
        name = request.header(GetSubscriptionGroupConfigRequest).group
        config = self._groups.get(name)
        if config is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {name[:300]}",
            )
        return Response(body=fastjson.dumps(config))

    async def show_all(self, request: Request) -> Response:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
        slices = Slices()
        table, forbidden = self._groups.all(), self._groups.forbidden()
        wrapper = SubscriptionGroupWrapper(data_version=self._groups.version)
        header = request.header(GetAllSubscriptionGroupRequest)
        first = first_of_page(header.group_seq, header.data_version, self._groups.version)
        total = None
        if first is None:
            wrapper.subscription_group_table = dict(table)
            chosen = list(forbidden.items())
        else:
            page = page_of(table.items(), first, header.max_group_num)
            # What is forbidden is in the page of its group, or in the first one.
            wrapper.subscription_group_table = page
            others = [] if first else [each for each in forbidden.items() if each[0] not in table]
            chosen = others + [(name, forbidden[name]) for name in page if name in forbidden]
            total = GetAllSubscriptionGroupResponse(total_group_num=len(table))
        wrapper.forbidden_table = {
            group: dict(topics) async for group, topics in slices.each(chosen)
        }
        body = await encode(wrapper, slices)
        check_whole(body, "groups")
        return Response(header=total, body=body)

    async def forbid(self, request: Request) -> Response:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): allow or forbid a group to read a topic."""
        header = request.header(UpdateAndGetGroupForbiddenRequest)
        if header.readable is not None:
            check_is_master(self._role)
            _check_name(header.group)
            if not 0 < len(header.topic) <= NAME_CHARS_MAX:
                raise invalid(f"a topic of {len(header.topic)} characters")
            await self._groups.set_readable(header.group, header.topic, header.readable)
        body = GroupForbidden(
            group=header.group,
            topic=header.topic,
            readable=not self._groups.is_forbidden(header.group, header.topic),
        )
        return Response(body=body.encode())


def _merged(
    config: SubscriptionGroupConfig,
) -> Callable[[SubscriptionGroupConfig | None], SubscriptionGroupConfig]:
    """Return the change to the settings of a request; it keeps the attributes of the group.

    Others are refused: RocketMQ 5.3 defines no attribute of groups.
    """

    def merge(present: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
        attributes = present.attributes if present is not None else {}
        for key, value in config.attributes.items():
            if attributes.get(key) != value:
                raise ResponseError(  # with RocketMQ's code
                    ResponseCode.SYSTEM_ERROR,
                    f"unsupported attribute {key[:80]!r}: groups have none",
                )
        return msgspec.structs.replace(config, attributes=attributes)

    return merge


def _check(config: SubscriptionGroupConfig) -> None:
    _check_name(config.group_name)
    slow_id = config.which_broker_when_consume_slowly
    check_number("retryQueueNums", config.retry_queue_nums, 0, RETRY_QUEUES_MAX)
    check_number("retryMaxTimes", config.retry_max_times, -1, INT_MAX)
    check_number("groupSysFlag", config.group_sys_flag, -INT_MAX - 1, INT_MAX)
    check_number("consumeTimeoutMinute", config.consume_timeout_minute, -INT_MAX - 1, INT_MAX)
    check_number("brokerId", config.broker_id, -LONG_MAX - 1, LONG_MAX)
    check_number("whichBrokerWhenConsumeSlowly", slow_id, -LONG_MAX - 1, LONG_MAX)
    for entry in config.subscription_data_set or ():
        check_number("subscriptionDataSet.version", entry.version, -LONG_MAX - 1, LONG_MAX)
    _check_retry_policy(config.group_retry_policy)


def _check_retry_policy(policy: GroupRetryPolicy) -> None:
    if policy.type not in (CUSTOMIZED, EXPONENTIAL):
        raise invalid(
            f"the type of groupRetryPolicy is {policy.type[:80]!r}, expected {CUSTOMIZED} or"
            f" {EXPONENTIAL}"
        )
    delays = (policy.customized_retry_policy or CustomizedRetryPolicy()).next or []
    if len(delays) > RETRY_DELAYS_MAX:
        raise invalid(
            f"groupRetryPolicy has {len(delays)} delays, expected at most {RETRY_DELAYS_MAX}"
        )
    growing = policy.exponential_retry_policy or ExponentialRetryPolicy()
    for name, value, least in (
        *(("customizedRetryPolicy.next", delay, 0) for delay in delays),
        ("exponentialRetryPolicy.initial", growing.initial, 0),
        ("exponentialRetryPolicy.max", growing.max, 0),
        ("exponentialRetryPolicy.multiplier", growing.multiplier, 1),
    ):
        check_number(name, value, least, RETRY_DELAY_MS_MAX)


def _check_name(name: str) -> None:
    try:
        check_group_name(name)
    except InvalidNameError as problem:
        raise invalid(problem.remark) from None
