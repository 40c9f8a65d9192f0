"""Handles requests of tools that create, change, show and delete consumer groups.

Source: AdminBrokerProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from cometmq.broker.checks import check_is_master
from cometmq.broker.config import BrokerSettings
from cometmq.broker.groups.table import GroupTable
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import check_group_name
from cometmq.protocol import fastjson
from cometmq.protocol.bodies import (
    GroupForbidden,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    DeleteSubscriptionGroupRequest,
    GetSubscriptionGroupConfigRequest,
    UpdateAndGetGroupForbiddenRequest,
)
from cometmq.protocol.lenient import read_struct
from cometmq.remoting import Request, Response

log = logging.getLogger(__name__)

GROUPS_AT_ONCE_MAX = 10_000
RETRY_QUEUES_MAX = 1024
NAME_CHARS_MAX = 512


class GroupHandler:
    """Answers tools about groups.

    Args:
        groups: the table.
        settings: returns the current settings of the broker.
        forget_offsets: drops what a group has consumed.
        forget_statistics: drops what was counted for a group.
    """

    def __init__(
        self,
        groups: GroupTable,
        settings: Callable[[], BrokerSettings],
        *,
        forget_offsets: Callable[[str], None],
        forget_statistics: Callable[[str], None] = lambda group: None,
    ) -> None:
        self._groups = groups
        self._settings = settings
        self._forget_offsets = forget_offsets
        self._forget_statistics = forget_statistics

    async def put(self, request: Request) -> Response:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        try:
            config = read_struct(fastjson.loads(request.body), SubscriptionGroupConfig)
        except fastjson.FastJsonError as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"SubscriptionGroupConfig: {problem}"
            ) from None
        return await self._put([config], request)

    async def put_list(self, request: Request) -> Response:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): all of them, or none."""
        configs = SubscriptionGroupList.decode(request.body).group_config_list
        if len(configs) > GROUPS_AT_ONCE_MAX:
            raise _illegal(f"{len(configs)} groups, expected at most {GROUPS_AT_ONCE_MAX}")
        return await self._put(configs, request)

    async def _put(self, configs: list[SubscriptionGroupConfig], request: Request) -> Response:
        check_is_master(self._settings())
        for config in configs:
            _check(config)
        if await self._groups.change({config.group_name: _merged(config) for config in configs}):
            for config in configs:
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
        check_is_master(self._settings())
        header = request.header(DeleteSubscriptionGroupRequest)
        name = header.group_name
        if await self._groups.delete(name):
            log.info("group deleted group=%s peer=%s", name, request.connection.peer_text)
        if header.clean_offset or header.remove_offset:
            self._forget_offsets(name)
        self._forget_statistics(name)
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

    def show_all(self, request: Request) -> Response:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
        wrapper = SubscriptionGroupWrapper(
            subscription_group_table=dict(self._groups.all()),
            forbidden_table={
                group: dict(topics) for group, topics in self._groups.forbidden().items()
            },
            data_version=self._groups.version,
        )
        return Response(body=wrapper.encode())

    async def forbid(self, request: Request) -> Response:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): may a group read a topic?"""
        header = request.header(UpdateAndGetGroupForbiddenRequest)
        if header.readable is not None:
            check_is_master(self._settings())
            _check_name(header.group)
            if not 0 < len(header.topic) <= NAME_CHARS_MAX:
                raise _illegal(f"a topic of {len(header.topic)} characters")
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
    """The settings of a request, with its changes of attributes (``+key``, ``-key``) made."""

    def merge(present: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
        attributes = dict(present.attributes) if present is not None else {}
        for key, value in config.attributes.items():
            if key.startswith("-"):
                attributes.pop(key[1:], None)
            else:
                attributes[key.removeprefix("+")] = value
        return msgspec.structs.replace(config, attributes=attributes)

    return merge


def _check(config: SubscriptionGroupConfig) -> None:
    _check_name(config.group_name)
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
        raise _illegal(
            f"retryQueueNums is {config.retry_queue_nums}, expected 0 to {RETRY_QUEUES_MAX}"
        )
    if config.retry_max_times < -1:
        raise _illegal(f"retryMaxTimes is {config.retry_max_times}, expected at least -1")


def _check_name(name: str) -> None:
    try:
        check_group_name(name)
    except InvalidNameError as problem:
        raise _illegal(str(problem)) from None


def _illegal(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.INVALID_PARAMETER, remark)
