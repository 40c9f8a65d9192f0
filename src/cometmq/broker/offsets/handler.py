"""Handles queries, commits, clones and corrections of committed offsets.

QUERY_CONSUMER_OFFSET (14), UPDATE_CONSUMER_OFFSET (15), GET_ALL_CONSUMER_OFFSET (43),
QUERY_CORRECTION_OFFSET (308), CLONE_GROUP_OFFSET (314). Source: ConsumerManageProcessor and
AdminBrokerProcessor, RocketMQ 5.3; RocketMQ also accepts commits of queues that do not exist; the
check bounds the table.
"""

from __future__ import annotations

from functools import partial
from itertools import islice

from cometmq.broker.checks import check_group, check_queue, invalid
from cometmq.broker.core import Core
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.group import ConsumerOffsetSerializeWrapper, QueryCorrectionOffsetBody
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.offset import (
    CloneGroupOffsetRequest,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    QueryCorrectionOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, encode
from cometmq.store import GetStatus
from cometmq.store.message_store import bring_in

AHEAD_OF_ALL = 2**63 - 1
FILTER_GROUPS_MAX = 20_000
"""Groups that one request may leave out of a correction."""


class OffsetHandler:
    """Returns and stores committed offsets.

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._offsets = core.offsets
        self._store = core.store
        self._cold_reads = core.cold_reads
        self._topics = core.topics
        self._static_topics = core.static_topics
        self._groups = core.groups

    def query(self, request: Request) -> Response:
        """Return the committed offset of a group in a queue."""
        header = request.header(QueryConsumerOffsetRequest)
        offset = self._offsets.committed(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            offset = self._first_offset(header)
        return Response(header=QueryConsumerOffsetResponse(offset=offset))

    def update(self, request: Request) -> Response:
        """Commit an offset; while a reset is pending, commits are ignored."""
        header = request.header(UpdateConsumerOffsetRequest)
        return self.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> Response:
        """Commit an offset in a physical queue.

        Raises:
            ResponseError: it is refused.
        """
        if self._groups.get(group) is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!"
            )
        config = self._topics.get(topic)
        if config is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        check_queue(config, queue_id)
        if offset < 0:
            raise invalid(f"Offset is {offset}, expected 0 or more, topic is {topic}")
        if self._offsets.is_reset_pending(group, topic, queue_id):
            return Response(remark="Offset has been previously reset")
        if self._static_topics.is_ended(topic, queue_id):  # no message is stored there any more
            self._offsets.commit(group, topic, queue_id, offset)
        else:
            self._offsets.commit_of_client(group, topic, queue_id, offset)
        return Response()

    async def all(self, request: Request) -> Response:
        """Return all committed offsets."""
        # Only slaves and tools request them.
        from cometmq.broker.table_pages import check_whole, page_of
        from cometmq.protocol.headers.table_page import (
            GetAllConsumerOffsetRequest,
            GetAllConsumerOffsetResponse,
        )

        slices = Slices()
        header = request.header(GetAllConsumerOffsetRequest)
        keys, total = self._offsets.keys(), None
        offsets: dict[str, dict[int, int]] = {}
        topics: dict[str, list[str]] = {}
        if header.offset_seq is None:
            async for key in slices.each(keys):
                offsets[key] = self._of_key(key)
        else:
            entries = (
                (key, self._of_key(key)) for key in islice(keys, max(header.offset_seq, 0), None)
            )
            offsets = page_of(entries, 0, header.max_offset_num)
            total = GetAllConsumerOffsetResponse(total_offset_num=len(keys))
        async for key in slices.each(offsets):
            topic, _, group = key.partition("@")
            topics.setdefault(group, []).append(topic)
        table = ConsumerOffsetSerializeWrapper(
            offset_table=offsets, data_version=self._offsets.version, group_topic_map=topics
        )
        body = await encode(table, slices)
        check_whole(body, "committed offsets")
        return Response(header=total, body=body)

    def _of_key(self, key: str) -> dict[int, int]:
        topic, _, group = key.partition("@")
        return self._offsets.of(group, topic)

    async def clone(self, request: Request) -> Response:
        """Copy the offsets of one group to another group."""
        header = request.header(CloneGroupOffsetRequest)
        check_group(header.dest_group)
        topics = [header.topic] if header.topic else self._offsets.topics_of(header.src_group)
        async for topic in Slices().each(topics):
            self._offsets.clone(header.src_group, header.dest_group, topic)
        return Response()

    async def correction(self, request: Request) -> Response:
        """Return the least offset of the other groups in each queue of a topic.

        If the compared group is ahead of that, the response is the greatest offset there can be.
        """
        header = request.header(QueryCorrectionOffsetRequest)
        filtered = header.filter_groups or ""
        if filtered.count(",") > FILTER_GROUPS_MAX:
            raise invalid(f"more than {FILTER_GROUPS_MAX} groups to leave out")
        left_out = set(filtered.split(","))
        slices = Slices()
        slowest = await self._slowest(header.topic, left_out, slices)
        compared = self._offsets.of(header.compare_group, header.topic)
        offsets: dict[int, int] = {}
        async for queue_id, offset in slices.each(slowest.items()):
            offsets[queue_id] = AHEAD_OF_ALL if compared.get(queue_id, -1) > offset else offset
        body = QueryCorrectionOffsetBody(correction_offsets=offsets)
        return Response(body=await encode(body, slices))

    def _first_offset(self, header: QueryConsumerOffsetRequest) -> int:
        """Return 0 for a new group on a young queue; refuse others: their client decides."""
        if header.set_zero_if_not_found is False:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
            )
        if not self._is_young(header.topic, header.queue_id):
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        return 0

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is empty, or still begins with message 0 and that is in memory."""
        config = self._topics.get(topic)
        if config is None or not 0 <= queue_id < config.read_queue_nums:
            return False
        low, high = self._store.bounds(topic, queue_id)
        if low > 0 or high <= 0:
            return low <= 0
        cold = self._store.reader.cold_units(topic, queue_id, 0, 1, None)
        self._cold_reads.require_in_memory(partial(bring_in, cold) if cold else None)
        first = self._store.get(topic, queue_id, 0, 1)
        return first.status is GetStatus.FOUND and not first.suggest_slave

    async def _slowest(self, topic: str, left_out: set[str], slices: Slices) -> dict[int, int]:
        slowest: dict[int, int] = {}
        async for group in slices.each(self._offsets.groups_of(topic)):
            if group in left_out:
                continue
            async for queue_id, offset in slices.each(self._offsets.of(group, topic).items()):
                low, _ = self._store.bounds(topic, queue_id)
                if offset >= low:
                    slowest[queue_id] = min(offset, slowest.get(queue_id, offset))
        return slowest
