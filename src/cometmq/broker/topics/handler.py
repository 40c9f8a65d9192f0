"""Handles requests of tools that create, change, show and delete topics.

A topic is created or changed before the response is sent, and the name servers that can be reached
know of it. A deletion writes the table first: if the disk refuses, nothing has changed. Then the
queues and the committed offsets are deleted.

Source: AdminBrokerProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from cometmq.broker.checks import INT_MAX, check_body, check_is_master, check_number, invalid
from cometmq.broker.core import Core
from cometmq.broker.table_pages import check_whole, first_of_page, fits, is_version, page_of
from cometmq.broker.topics import attributes
from cometmq.broker.topics.table import is_internal_name
from cometmq.model.errors import ConfigError, InvalidNameError, ResponseError
from cometmq.model.topic import QUEUES_MAX, TopicConfig, check_topic_name
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.common import DataVersion4, TopicList
from cometmq.protocol.bodies.route import TopicQueueMappingDetail
from cometmq.protocol.bodies.topic import (
    TopicConfigAndQueueMapping,
    TopicConfigList,
    TopicConfigSerializeWrapper,
    TopicConfigSerializeWrapper4,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.table_page import GetAllTopicConfigRequest, GetAllTopicConfigResponse
from cometmq.protocol.headers.topic import (
    DeleteTopicInBrokerRequest,
    GetTopicConfigRequest,
    UpdateAndCreateTopicRequest,
)
from cometmq.protocol.version import MAPPING_VERSION_MIN
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, decode, encode

log = logging.getLogger(__name__)

TOPICS_AT_ONCE_MAX = 10_000
TOPICS_BYTES_MAX = 4 * 1024 * 1024
"""Limit of a body that describes many topics."""
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_ITEM_BYTES = 160
"""The size of an item of a mapping, about."""
_PERM_MAX = 15


class TopicHandler:
    """Creates, changes, shows and deletes topics.

    Args:
        core: of the broker.
        announce: returns when the name servers have the change.
        forget: removes a deleted topic from other parts of the broker, on disk too.
        changes_to_make: returns what makes the changes of mappings that this broker has received
            and not made; None if there are none.
        retry_topics: returns the topics that are deleted before a topic.
    """

    def __init__(
        self,
        core: Core,
        *,
        announce: Callable[[], Awaitable[None]],
        forget: Callable[[str], Awaitable[None]],
        changes_to_make: Callable[[], Awaitable[None] | None],
        retry_topics: Callable[[str], list[str]],
    ) -> None:
        self._changes_to_make = changes_to_make
        self._topics = core.topics
        self._static_topics = core.static_topics
        self._queues = core.store
        self._settings = core.settings
        self._role = core.role
        self._announce = announce
        self._forget = forget
        self._retry_topics = retry_topics
        self._created = core.measures.timings.topics

    # --- making and changing --------------------------------------------------------------------

    async def put(self, request: Request) -> Response:
        """UPDATE_AND_CREATE_TOPIC (17)."""
        header = request.header(UpdateAndCreateTopicRequest)
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        return await self._put([(config, header.attributes or "")], request)

    async def put_list(self, request: Request) -> Response:
        """UPDATE_AND_CREATE_TOPIC_LIST (18): all of them, or none."""
        check_body(request, TOPICS_BYTES_MAX)
        configs = (await decode(TopicConfigList, request.body)).topic_config_list
        if len(configs) > TOPICS_AT_ONCE_MAX:
            raise invalid(f"{len(configs)} topics, expected at most {TOPICS_AT_ONCE_MAX}")
        wanted = [(config, _as_changes(config)) async for config in Slices().each(configs)]
        return await self._put(wanted, request)

    async def _put(self, wanted: list[tuple[TopicConfig, str]], request: Request) -> Response:
        """Create or change topics with the settings and the changes of attributes of a request."""
        is_system = len(wanted) == 1 and self._topics.is_system(wanted[0][0].topic_name)
        with self._created.measured(is_system=is_system):
            return await self._change(wanted, request)

    async def _change(self, wanted: list[tuple[TopicConfig, str]], request: Request) -> Response:
        slices = Slices()
        made = {}
        async for config, changes in slices.each(wanted):
            self._checked(config, changes, self._topics.get(config.topic_name))
            made[config.topic_name] = partial(self._checked, config, changes)
        check_is_master(self._role)
        if await self._topics.change(made):
            async for config, _ in slices.each(wanted):
                log.info(
                    "topic created or updated topic=%s read_queues=%d write_queues=%d perm=%d"
                    " peer=%s",
                    config.topic_name,
                    config.read_queue_nums,
                    config.write_queue_nums,
                    config.perm,
                    request.connection.peer_text,
                )
            await self._announce()
        return Response()

    def _checked(self, config: TopicConfig, changes: str, known: TopicConfig | None) -> TopicConfig:
        """The settings with their attributes, if they are allowed for a topic as it is now."""
        name = config.topic_name
        try:
            check_topic_name(name)
        except InvalidNameError as problem:
            raise invalid(problem.remark) from None
        self._check_not_system(name)
        _check_numbers(config)
        self._check_static(config, known)
        try:
            found = attributes.with_changes(
                known.attributes if known else {}, changes, is_new=known is None
            )
        except ConfigError as problem:  # RocketMQ's code for attributes is not that of a parameter
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from None
        if (
            found.get(attributes.MESSAGE_TYPE) == attributes.MIXED
            and not self._settings().enable_mixed_message_type
        ):
            raise invalid("MIXED message type is not supported.")
        return msgspec.structs.replace(config, attributes=found)

    def _check_static(self, config: TopicConfig, known: TopicConfig | None) -> None:
        """Refuse other numbers of queues for a static topic, whose mapping decides them."""
        if known is None or config.topic_name not in self._static_topics:
            return
        counts = known.read_queue_nums, known.write_queue_nums
        if counts != (config.read_queue_nums, config.write_queue_nums):
            raise invalid(
                f"topic[{config.topic_name}] is a static topic: met readQueueNums="
                f"{config.read_queue_nums} writeQueueNums={config.write_queue_nums}, expected"
                f" {counts[0]} and {counts[1]}; updateStaticTopic changes the number of its queues"
            )

    def _check_not_system(self, name: str) -> None:
        if self._settings().validate_system_topic_when_update and self._topics.is_system(name):
            raise invalid(f"The topic[{name}] is conflict with system topic.")

    # --- deleting -------------------------------------------------------------------------------

    async def delete(self, request: Request) -> Response:
        """DELETE_TOPIC_IN_BROKER (215)."""
        name = request.header(DeleteTopicInBrokerRequest).topic
        check_is_master(self._role)
        if not name.strip():
            raise invalid("The specified topic is blank.")
        self._check_not_system(name)
        for each in [*self._retry_topics(name), name]:
            # The table first: if it cannot be written, nothing has changed.
            if await self._topics.delete(each, self._drop):
                log.info("topic deleted topic=%s peer=%s", each, request.connection.peer_text)
        return Response()

    async def _drop(self, name: str) -> None:
        """Drop what belongs to a topic that has just been deleted."""
        await self._static_topics.forget(name)
        if is_internal_name(name):
            self._queues.delete_topic(name)
            await self._forget(name)

    async def clean_unused(self, request: Request) -> Response:
        """CLEAN_UNUSED_TOPIC (316): delete the queues of topics that have no settings.

        Not on a slave: the log may already have messages of topics that it has not copied yet.
        """
        check_is_master(self._role)
        async for name in Slices().each(self._queues.topics()):
            if name not in self._topics and not self._topics.is_system(name):
                self._queues.delete_topic(name)
        return Response()

    # --- showing --------------------------------------------------------------------------------

    def show(self, request: Request) -> Response | Awaitable[Response]:
        """GET_TOPIC_CONFIG (351)."""
        header = request.header(GetTopicConfigRequest)
        changes = self._changes_to_make() if header.lo else None
        if changes is not None:
            request.is_exclusive = True
            return self._show_changed(header, changes)
        body = self._shown(header)
        if header.lo and fastjson.is_long(body):
            request.is_exclusive = True
            return self._show_long(body)
        return Response(body=body.encode())

    def _shown(self, header: GetTopicConfigRequest) -> TopicConfigAndQueueMapping:
        name = header.topic
        config = self._topics.get(name)
        if config is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name[:300]}"
            )
        body = TopicConfigAndQueueMapping(**msgspec.structs.asdict(config))
        if header.lo:
            body.mapping_detail = self._static_topics.get(name)
        return body

    async def _show_changed(
        self, header: GetTopicConfigRequest, changes: Awaitable[None]
    ) -> Response:
        await changes
        return await self._show_long(self._shown(header))

    async def _show_long(self, body: TopicConfigAndQueueMapping) -> Response:
        return Response(body=await encode(body))

    async def show_all(self, request: Request) -> Response:
        """GET_ALL_TOPIC_CONFIG (21), in the form of the requester's release.

        A slave of 4.9 keeps the version without what it does not know, and tools compare the two.
        A whole table that is too large for a frame leaves out the mappings of static topics:
        RocketMQ's slaves request no pages, and use no mappings. So does a page for a slave that has
        them already.
        """
        table, version = self._topics.all(), self._topics.version
        header = request.header(GetAllTopicConfigRequest)
        first = first_of_page(header.topic_seq, header.data_version, version)
        mappings = self._static_topics.mappings
        is_known = is_version(header.mapping_data_version, self._static_topics.version)
        if first is None:
            topics, total = dict(table), None
        else:
            sizes = () if is_known else (self._mapping_bytes,)
            topics = page_of(table.items(), first, header.max_topic_num, *sizes)
            total = GetAllTopicConfigResponse(total_topic_num=len(table))
        details: dict[str, TopicQueueMappingDetail] | None = None if is_known else {}
        if details is not None and mappings:
            details = {name: mappings[name] for name in topics if name in mappings}
        wrapper: TopicConfigSerializeWrapper | TopicConfigSerializeWrapper4
        if request.command.version >= MAPPING_VERSION_MIN:
            wrapper = TopicConfigSerializeWrapper(topic_config_table=topics, data_version=version)
        else:
            wrapper = TopicConfigSerializeWrapper4(
                topic_config_table=topics,
                data_version=DataVersion4(timestamp=version.timestamp, counter=version.counter),
            )
        wrapper.topic_queue_mapping_info_map = {}
        wrapper.topic_queue_mapping_detail_map = details
        wrapper.mapping_data_version = self._static_topics.version
        body = await encode(wrapper)
        if first is None and details and not fits(body):
            wrapper.topic_queue_mapping_detail_map = wrapper.mapping_data_version = None
            body = await encode(wrapper)
        check_whole(body, "topics")
        return Response(header=total, body=body)

    def _mapping_bytes(self, topic: str) -> int:
        """Return how many bytes the mapping of a topic takes on a page, about."""
        detail = self._static_topics.get(topic)
        if detail is None:
            return 0
        return sum(map(len, (detail.hosted_queues or {}).values())) * _ITEM_BYTES

    async def show_system(self, request: Request) -> Response:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        names = await self._topics.system_names()
        return Response(body=await encode(TopicList(topic_list=names)))


def _check_numbers(config: TopicConfig) -> None:
    check_number("readQueueNums", config.read_queue_nums, 0, QUEUES_MAX)
    check_number("writeQueueNums", config.write_queue_nums, 0, QUEUES_MAX)
    check_number("perm", config.perm, 0, _PERM_MAX)
    check_number("topicSysFlag", config.topic_sys_flag, -INT_MAX - 1, INT_MAX)
    if config.topic_filter_type not in _FILTER_TYPES:
        raise invalid(
            f"topicFilterType is {config.topic_filter_type[:80]!r},"
            f" expected {' or '.join(_FILTER_TYPES)}"
        )


def _as_changes(config: TopicConfig) -> str:
    """The attributes of a topic in a list: their names may carry the signs of changes."""
    parts = []
    for key, value in config.attributes.items():
        sign = "" if key[:1] in ("+", "-") else "+"
        parts.append(key if key.startswith("-") else f"{sign}{key}={value}")
    return ",".join(parts)
