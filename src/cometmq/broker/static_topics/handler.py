"""Handles UPDATE_AND_CREATE_STATIC_TOPIC (513): replaces the part of a static topic here.

Everything is checked before anything changes; the checks of RocketMQ come first, in its order. Then
the change is stored in the log, then the mapping is written, then the topic: a crash in between is
repaired at the next start. The response waits until the change is as durable as a message that is
sent.

A broker that loses a queue responds when readers see all messages that it has stored in it, so that
the end that a tool reads then is the last one.

Source: AdminBrokerProcessor.updateAndCreateStaticTopic and TopicQueueMappingManager, RocketMQ 5.3,
which changes the topic before it checks the mapping, and leaves most checks to the tool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from cometmq.broker.checks import check_body, check_is_master, check_number, invalid
from cometmq.broker.core import Core
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.static_topics.changes import Hosted, merged
from cometmq.broker.static_topics.table import queues_needed
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.topic import QUEUES_MAX, TopicConfig, check_topic_name
from cometmq.protocol.bodies.route import TopicQueueMappingDetail
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.topic import (
    UpdateAndCreateStaticTopicResponse,
    UpdateAndCreateTopicRequest,
)
from cometmq.protocol.logical_queues import (
    MAPPING_BYTES_MAX,
    InvalidMappingError,
    info_of,
    is_decided,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import decode, off_loop

log = logging.getLogger(__name__)

SMALL_BYTES = 16 * 1024
"""A smaller mapping is checked on the event loop."""
_PERM_MAX = 15


class StaticTopicHandler:
    """Creates and changes static topics.

    Args:
        core: of the broker.
        durability: shows when readers see what is stored.
        announce: returns when the name servers have the change.
    """

    def __init__(
        self, core: Core, durability: DurabilityWait, announce: Callable[[], Awaitable[None]]
    ) -> None:
        self._topics = core.topics
        self._mappings = core.static_topics
        self._store = core.store
        self._role = core.role
        self._durability = durability
        self._announce = announce
        self._changing = asyncio.Lock()

    async def put(self, request: Request) -> Response:
        """Replace the part of a static topic, and create or enlarge the topic."""
        header = request.header(UpdateAndCreateTopicRequest)
        check_body(request, MAPPING_BYTES_MAX)
        if not request.body:
            raise _refused(f"topic {header.topic[:300]}: no mapping, expected one in the body")
        wanted = await decode(TopicQueueMappingDetail, request.body)
        check_is_master(self._role)
        async with self._changing:
            self._check_header(header)
            known = self._mappings.get(header.topic)
            unused = self._unused(header.topic, known)
            merge = partial(
                merged,
                wanted,
                known,
                topic=header.topic,
                broker=self._mappings.broker_name,
                force=bool(header.force),
                is_unused=unused.__contains__,
            )
            try:
                new = merge() if len(request.body) < SMALL_BYTES else await off_loop(merge)
            except InvalidMappingError as problem:
                raise _refused(str(problem)) from problem
            self._check_queues(header, new, known)
            if (refusal := self._durability.refusal) is not None:
                raise refusal
            try:
                log_end = await self._mappings.replace(new, self._settings_of(header))
            except InvalidMappingError as problem:
                raise _refused(str(problem)) from problem
            await self._put_topic(header)
            await self._until_durable(header.topic, log_end)
            log.info(
                "static topic created or updated topic=%s epoch=%d queues=%d led=%d peer=%s",
                *(new.topic, new.epoch, new.total_queues, len(info_of(new).curr_id_map)),
                request.connection.peer_text,
            )
            await self._announce()
        ended = self._ended(new)
        if not ended:
            return Response()
        await self._until_readable(header.topic, ended)
        ends = (
            f"{queue_id}:{self._store.bounds(header.topic, physical)[1]}"
            for queue_id, physical in ended
        )
        return Response(header=UpdateAndCreateStaticTopicResponse(ended=",".join(ends)))

    async def replace(self, detail: TopicQueueMappingDetail) -> None:
        """Replace a part by one that other brokers have agreed on, and announce it.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        async with self._changing:
            known = self._mappings.get(detail.topic)
            if known is not None and known.epoch < detail.epoch:
                await self._mappings.take(detail)
                await self._topics.touch()
                await self._announce()

    def _check_header(self, header: UpdateAndCreateTopicRequest) -> None:
        try:
            check_topic_name(header.topic)
        except InvalidNameError as problem:
            raise invalid(problem.remark) from None
        if self._topics.is_system(header.topic):
            raise invalid(f"The topic[{header.topic}] is conflict with system topic.")
        check_number("readQueueNums", header.read_queue_nums, 0, QUEUES_MAX)
        check_number("writeQueueNums", header.write_queue_nums, 0, QUEUES_MAX)
        check_number("perm", header.perm, 0, _PERM_MAX)

    def _check_queues(
        self,
        header: UpdateAndCreateTopicRequest,
        new: TopicQueueMappingDetail,
        known: TopicQueueMappingDetail | None,
    ) -> None:
        """Check the numbers of physical queues in the header."""
        count = min(header.read_queue_nums, header.write_queue_nums)
        needed = queues_needed(new, self._mappings.broker_name)
        if count < needed:
            raise _refused(
                f"topic {header.topic} has {count} physical queues here, expected at least {needed}"
                " for its items"
            )
        config = self._topics.get(header.topic)
        if known is None or config is None or header.force:
            return
        least = max(config.read_queue_nums, config.write_queue_nums)
        if count < least:
            raise _refused(
                f"topic {header.topic} has {least} physical queues, met {count}, expected no fewer:"
                " none is used twice"
            )

    def _settings_of(self, header: UpdateAndCreateTopicRequest) -> TopicConfig:
        present = self._topics.get(header.topic)
        return TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            attributes={} if present is None else present.attributes,
        )

    async def _put_topic(self, header: UpdateAndCreateTopicRequest) -> None:
        if not await self._topics.change({header.topic: lambda _: self._settings_of(header)}):
            await self._topics.touch()  # name servers compare the version of the topics only

    async def _until_durable(self, topic: str, log_end: int) -> None:
        """Wait until the change is as durable as a message.

        Raises:
            ResponseError: 14, a new master may lack it.
        """
        if not all(await self._durability.confirmed_by(log_end)):
            raise ResponseError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the mapping of topic {topic} has changed here, but disk or slaves have not"
                " confirmed it: send the same request again",
            )

    def _unused(self, topic: str, known: TopicQueueMappingDetail | None) -> set[int]:
        """Return the physical queues of undecided items here that never had a message."""
        hosted: Hosted = (known.hosted_queues if known else None) or {}
        last = [items[-1] for items in hosted.values()]
        return {
            item.queue_id
            for item in last
            if item.bname == self._mappings.broker_name
            and not is_decided(item)
            and self._store.next_offset(topic, item.queue_id) == 0
        }

    def _ended(self, detail: TopicQueueMappingDetail) -> list[tuple[int, int]]:
        """Return the logical queues that are moving away from here, with their physical queues."""
        hosted: Hosted = detail.hosted_queues or {}
        name = self._mappings.broker_name
        return [
            (queue_id, items[-2].queue_id)
            for queue_id, items in hosted.items()
            if len(items) > 1
            and items[-1].bname != name
            and not is_decided(items[-1])
            and items[-2].bname == name
        ]

    async def _until_readable(self, topic: str, lost: list[tuple[int, int]]) -> None:
        """Wait until readers see all messages of queues that get no more.

        Raises:
            ResponseError: 14, they do not see some of them.
        """
        self._store.appender.finish_deferred()
        if all(self._is_readable(topic, physical) for _, physical in lost):
            return
        await self._durability.confirmed_by(self._store.written_to)
        for queue_id, physical in lost:
            if not self._is_readable(topic, physical):
                raise ResponseError(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"{topic}-{queue_id} is not led here any more, but its last messages are not"
                    " confirmed by disk or slaves: send the same request again",
                )

    def _is_readable(self, topic: str, physical: int) -> bool:
        return self._store.bounds(topic, physical)[1] >= self._store.next_offset(topic, physical)


def _refused(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_ERROR, remark)
