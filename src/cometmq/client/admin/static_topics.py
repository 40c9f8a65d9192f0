"""Static topics: create them, and move their logical queues between brokers.

A move has five steps, each a request that may be repeated:

    1. the new brokers get the new item, undecided     both brokers accept messages now
    2. the old brokers get it                          from here on they refuse messages
    3. the begin of the new item is decided            behind the end of the old one
    4. the new brokers get the decided item            readers go on there
    5. all other brokers get the new epoch

If a step fails, or the caller is killed, the next call of `move_static_queues` finishes that move
first.

Source: DefaultMQAdminExtImpl.remappingStaticTopic, RocketMQ 5.3, which cannot go on after a
failure.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from cometmq.client.admin.servers import AdminCore
from cometmq.client.admin.static_plans import (
    Parts,
    QueueMove,
    StaticPlan,
    add_queues,
    balanced_moves,
    brokers_of_items,
    check_parts,
    check_sizes,
    decide,
    empty_part,
    hosted_by,
    leaders_of,
    logical_consume_stats,
    logical_topic_stats,
    move_queues,
    next_epoch,
    renew_stale_lists,
    with_epoch,
)
from cometmq.client.errors import ClientError, TopicNotFoundError
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import QUEUES_MAX, RETRY_PREFIX, TEMPLATE_TOPIC, check_topic_name
from cometmq.protocol.bodies.group import ConsumeStats, OffsetWrapper
from cometmq.protocol.bodies.route import (
    MASTER_ID,
    ClusterInfo,
    LogicQueueMappingItem,
    TopicRouteData,
)
from cometmq.protocol.bodies.topic import (
    TopicConfigAndQueueMapping,
    TopicOffset,
    TopicStatsTable,
    detail_of,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.group import GetConsumeStatsRequest
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.headers.topic import (
    GetTopicConfigRequest,
    GetTopicStatsInfoRequest,
    UpdateAndCreateStaticTopicResponse,
    UpdateAndCreateTopicRequest,
)
from cometmq.protocol.logical_queues import BLOCK, is_decided, logical_offset, round_up
from cometmq.remoting.tasks import side_by_side


class StaticTopics(AdminCore):
    """Calls about static topics."""

    async def create_static_topic(
        self, topic: str, queues: int, *, brokers: Iterable[str] | None = None
    ) -> dict[int, str]:
        """Create a static topic, or give one more logical queues.

        A static topic has a fixed number of queues, which can move between brokers while producers
        and consumers run, see `move_static_queues`. It needs brokers and clients of 5.0 and later.

        Args:
            topic: the name.
            queues: the number of logical queues, at most 65,535, and about 8,000 for each broker
                that leads some; it can grow later, but not fall.
            brokers: names of the brokers that get the new queues; None for all of the cluster.

        Returns:
            The broker of each logical queue.

        Raises:
            InvalidNameError: the name is invalid; nothing was changed.
            ConfigError: the number is invalid; nothing was changed.
            ClientError: a broker is not registered, the topic is an ordinary one, has more queues,
                or its brokers disagree about it; nothing was changed.
        """
        check_topic_name(topic)
        info = await self.cluster_info()
        targets = sorted(info.broker_addr_table) if brokers is None else list(brokers)
        plan = await self.plan_static_topic(topic, queues, targets)
        await self.write_static_parts(plan, list(plan.parts))
        return leaders_of(plan.parts)

    async def static_parts(self, topic: str) -> Parts:
        """Return the part of a static topic at each broker that has the topic, by broker name.

        Raises:
            ClientError: a broker has no master, or has an ordinary topic of this name.
        """
        info = await self.cluster_info()
        names = sorted(info.broker_addr_table)
        found = await side_by_side(names, lambda name: self._part(topic, name, _master(info, name)))
        return {name: part for name, part in zip(names, found, strict=True) if part is not None}

    async def _part(
        self, topic: str, broker: str, address: str
    ) -> TopicConfigAndQueueMapping | None:
        header = GetTopicConfigRequest(topic=topic, lo=True)
        try:
            response = await self.call(address, RequestCode.GET_TOPIC_CONFIG, header)
        except ResponseError as refused:
            if refused.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise
        part = TopicConfigAndQueueMapping.decode(response.body)
        if part.mapping_detail is None:
            raise ClientError(
                f"Mapping info should not be null in broker {broker}: its topic {topic} is an"
                " ordinary one, expected a static topic; create one with another name"
            )
        return part

    async def logical_consume_stats(
        self, group: str, stats: Mapping[MessageQueue, OffsetWrapper]
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Return the offsets of a group with logical queues for the queues of static topics.

        Args:
            group: the group.
            stats: its offsets at all brokers; brokers leave out topics where it has none.
        """
        shown: dict[MessageQueue, OffsetWrapper] = {}
        topics = dict.fromkeys(queue.topic for queue in stats)

        async def show(topic: str) -> dict[MessageQueue, OffsetWrapper]:
            if topic.startswith(RETRY_PREFIX) or not await self.is_static_topic(topic):
                return {}
            parts = await self.static_parts(topic)
            left_out = await self._left_out(group, topic, parts, stats)
            return logical_consume_stats(topic, parts, {**left_out, **stats})

        for each in await side_by_side(topics, show):
            shown |= each
        static = {queue.topic for queue in shown}
        return {queue: row for queue, row in stats.items() if queue.topic not in static} | shown

    async def _left_out(
        self,
        group: str,
        topic: str,
        parts: Parts,
        stats: Mapping[MessageQueue, OffsetWrapper],
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Return the offsets in the physical queues of a static topic that a table lacks."""
        info = await self.cluster_info()
        header = GetConsumeStatsRequest(consumer_group=group, topic=topic)
        shown = {queue.broker_name for queue in stats if queue.topic == topic}
        responses = await side_by_side(
            [_master(info, name) for name in brokers_of_items(parts) if name not in shown],
            lambda address: self.call(address, RequestCode.GET_CONSUME_STATS, header),
        )
        found: dict[MessageQueue, OffsetWrapper] = {}
        for response in responses:
            found |= ConsumeStats.decode(response.body).offset_table
        return found

    async def logical_topic_stats(
        self, topic: str, stats: Mapping[MessageQueue, TopicOffset]
    ) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of the logical queues of a topic; none if it is no static topic.

        Args:
            topic: its name.
            stats: the bounds of its physical queues at all brokers.
        """
        if not await self.is_static_topic(topic):
            return {}
        return logical_topic_stats(topic, await self.static_parts(topic), stats)

    async def is_static_topic(self, topic: str) -> bool:
        """Return whether the route of a topic has logical queues."""
        try:
            return bool((await self._route(topic)).hosts)
        except TopicNotFoundError:  # no broker has it now
            return False

    async def plan_static_topic(
        self, topic: str, queues: int, targets: Sequence[str]
    ) -> StaticPlan:
        """Return the parts of a static topic with so many logical queues; nothing is changed.

        Raises:
            ConfigError, ClientError: see `create_static_topic`.
        """
        if not 1 <= queues <= QUEUES_MAX:
            raise ConfigError(f"queues={queues}: expected 1 to {QUEUES_MAX}")
        info = await self.cluster_info()
        parts = await self.static_parts(topic)
        total = check_parts(parts) if parts else 0
        if parts and queues == total:
            raise ClientError(
                "The topic queue num is equal the existed queue num, do nothing: static topic"
                f" {topic} has {total} logical queues, expected a larger number"
            )
        if queues < total:
            raise ClientError(
                f"Cannot decrease the queue num for static topic {queues} < {total}: {topic} has"
                f" {total} logical queues, expected a larger number"
            )
        _check_targets(info, targets)
        epoch = next_epoch(parts, _now_ms())
        new = with_epoch(parts, epoch, queues)
        _add_empty(topic, new, [*targets, *_neighbours(info, targets)], epoch, queues)
        add_queues(new, {*targets, *parts}, total, queues)
        check_parts(new)
        check_sizes(new)
        return StaticPlan(topic, epoch, new)

    # --- moves ------------------------------------------------------------------------------------

    async def plan_remapping(self, topic: str, targets: Sequence[str]) -> StaticPlan:
        """Return how the logical queues of a topic whose brokers agree would move.

        Raises:
            ConfigError: no broker to move queues to is named.
            ClientError: a broker is not registered, no broker has the topic, or the brokers
                disagree about it.
        """
        _check_targets(await self.cluster_info(), targets)
        parts = await self.static_parts(topic)
        _check_exists(topic, parts)
        check_parts(parts)
        return _plan_of_moves(topic, parts, sorted(set(targets)))

    async def plan_queue_moves(
        self, topic: str, brokers: Iterable[str], *, lost: str | None = None
    ) -> StaticPlan:
        """Return how the logical queues of a static topic would move; nothing is changed.

        A move that has not finished is part of the plan, whatever its target.

        Args:
            topic: the topic.
            brokers: names of the brokers that are to lead all queues, each about as many.
            lost: the name of a broker whose master is lost; a replica of it is needed, which
                serves the messages that are there.

        Raises:
            ClientError: a broker is not registered, or the brokers disagree about the topic.
        """
        info = await self.cluster_info()
        targets = sorted(set(brokers))
        if lost in targets:
            raise ConfigError(f"broker {lost} is lost, expected other brokers to move to")
        _check_targets(info, targets)
        parts = await self._parts_of_all(topic, info, lost)
        _check_exists(topic, parts)
        await self._check_absent(topic, parts)
        renew_stale_lists(parts)
        if unfinished := _united(parts):
            epoch = next_epoch(parts, _now_ms())
            new = with_epoch(parts, epoch, _total_of(parts))
            check_parts(new)
            return StaticPlan(topic, epoch, new, unfinished)
        return _plan_of_moves(topic, parts, targets)

    async def move_static_queues(
        self, topic: str, brokers: Iterable[str], *, lost: str | None = None
    ) -> list[QueueMove]:
        """Move the logical queues of a static topic to some brokers, while clients run.

        Producers and consumers of CometMQ go on within a second, those of RocketMQ within half a
        minute. No message is lost, each queue keeps its order, and behind a broker of CometMQ the
        offsets go on without a gap. The messages that a queue has stay where they are, and are read
        from there.

        Args:
            topic: the topic.
            brokers: names of the brokers that are to lead all queues, each about as many.
            lost: see `plan_queue_moves`.

        Returns:
            The moves that were made.

        Raises:
            ClientError: see `plan_queue_moves`; nothing was changed.
        """
        targets = sorted(set(brokers))
        made: list[QueueMove] = []
        plan = await self.plan_queue_moves(topic, targets, lost=lost)
        await self.run_static_plan(plan, lost=lost)
        made += plan.moves
        if any(move.target not in targets for move in plan.moves) or _is_uneven(plan, targets):
            plan = await self.plan_queue_moves(topic, targets, lost=lost)
            await self.run_static_plan(plan, lost=lost)
            made += plan.moves
        return made

    async def run_static_plan(
        self,
        plan: StaticPlan,
        *,
        lost: str | None = None,
        leaves_gap: bool = False,
        force: bool = False,
    ) -> None:
        """Make the moves of a plan; see the steps above.

        Args:
            plan: the plan.
            lost: the name of a broker that gets nothing.
            leaves_gap: whether new items begin some thousand offsets behind the old ones, as with
                RocketMQ's tool, even if the old broker says that its ends are final.
            force: whether brokers take it even if they have newer mappings.
        """
        gaining = [name for name in plan.gaining if name != lost]
        losing = [name for name in plan.losing if name != lost]
        await self.write_static_parts(plan, gaining, force=force)
        ends: dict[int, int] = {}
        for name in losing:
            found = await self._write_part(plan, name, force)
            # A broker may name queues that it has lost earlier, too.
            lost_now = {move.queue_id for move in plan.moves if move.source == name}
            ends |= {queue_id: end for queue_id, end in found.items() if queue_id in lost_now}
        await self._decide(plan, {} if leaves_gap else ends)
        await self.write_static_parts(plan, gaining)
        others = [name for name in plan.parts if name not in gaining and name != lost]
        await self.write_static_parts(plan, others, force=force)

    async def _decide(self, plan: StaticPlan, ends: dict[int, int]) -> None:
        """Decide where the new items of a plan begin.

        Args:
            plan: the plan.
            ends: the physical ends of the items before them, as far as they are final; behind
                another one, room is left for messages that its broker may still store.
        """
        for queue_id, source, _ in plan.moves:
            items = _moved_items(plan, queue_id)
            old, new = items[-2:]
            if is_decided(new):
                continue
            end = ends.get(queue_id)
            if end is None:
                end = await self._physical_end(plan.topic, source, old.queue_id)
                offset = round_up(logical_offset(old, end), BLOCK)
            else:
                offset = max(logical_offset(old, end), old.logic_offset + 1)
            decide(plan.parts, queue_id, offset)

    async def write_static_parts(
        self, plan: StaticPlan, brokers: Iterable[str], *, force: bool = False
    ) -> None:
        """Send some brokers their parts of a plan.

        Args:
            plan: the plan.
            brokers: their names.
            force: whether they take it even if they have newer mappings.
        """
        for name in brokers:
            await self._write_part(plan, name, force)

    async def _write_part(self, plan: StaticPlan, broker: str, force: bool) -> dict[int, int]:
        """Send a broker its part; return the final ends of the queues that it has lost."""
        part = plan.parts[broker]
        header = UpdateAndCreateTopicRequest(
            topic=plan.topic,
            default_topic=TEMPLATE_TOPIC,
            read_queue_nums=part.read_queue_nums,
            write_queue_nums=part.write_queue_nums,
            perm=part.perm,
            topic_filter_type=part.topic_filter_type,
            topic_sys_flag=part.topic_sys_flag,
            force=force,
        )
        address = _master(await self.cluster_info(), broker)
        response = await self.call(
            address,
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
            header,
            detail_of(part).encode(),
        )
        ended = response.header(UpdateAndCreateStaticTopicResponse).ended or ""
        pairs = (pair.partition(":") for pair in ended.split(",") if pair)
        return {int(queue_id): int(end) for queue_id, _, end in pairs}

    async def _physical_end(self, topic: str, broker: str, queue_id: int) -> int:
        """Return the end of a physical queue, from the master of its broker or from a replica."""
        addresses = (await self.cluster_info()).broker_addr_table[broker].broker_addrs
        header = GetTopicStatsInfoRequest(topic=topic)
        address = addresses[min(addresses)]
        response = await self.call(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        for queue, row in TopicStatsTable.decode(response.body).offset_table.items():
            if queue.queue_id == queue_id:
                return row.max_offset
        raise ClientError(f"broker {broker} does not show queue {queue_id} of topic {topic}")

    async def _check_absent(self, topic: str, parts: Parts) -> None:
        """Check that no broker that is away has a newer part, and perhaps messages of clients.

        Raises:
            ClientError: one has.
        """
        newest = max((detail_of(part).epoch for part in parts.values()), default=0)
        header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
        for name_server in self.name_servers:
            try:
                response = await self.call(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            except CometError:  # clients do not get a route from it either
                continue
            route = TopicRouteData.decode(response.body)
            for info in (route.topic_queue_mapping_by_broker or {}).values():
                if info.bname not in parts and info.epoch > newest and info.curr_id_map:
                    raise ClientError(
                        f"broker {info.bname} leads queues of {topic} by a newer mapping, and is"
                        " away: start it, and finish that move"
                    )

    async def _parts_of_all(self, topic: str, info: ClusterInfo, lost: str | None) -> Parts:
        """Return the parts of all brokers, that of a lost one from its replica."""
        parts: Parts = {}
        for name, broker in sorted(info.broker_addr_table.items()):
            addresses = broker.broker_addrs
            if name == lost and MASTER_ID in addresses:
                raise ClientError(
                    f"broker {lost} has a master at {addresses[MASTER_ID]}, expected a lost broker:"
                    " move its queues without `lost`"
                )
            if name == lost and addresses:
                address = addresses[min(addresses)]
            else:
                address = _master(info, name)
            part = await self._part(topic, name, address)
            if part is not None:
                parts[name] = part
        if lost is not None and lost not in parts:
            raise ClientError(
                f"no replica of broker {lost} has topic {topic}: its messages cannot be read, and"
                " the ends of its queues are not known; bring the broker or a replica of it back"
            )
        return parts


def _check_targets(info: ClusterInfo, brokers: Collection[str]) -> None:
    """Check that some brokers, each with a master, can get queues.

    Raises:
        ConfigError: no broker is named.
        ClientError: one is not registered, or has no master.
    """
    if not brokers:
        raise ConfigError("no broker is named, expected at least one to get queues")
    for name in brokers:
        _master(info, name)


def _check_exists(topic: str, parts: Parts) -> None:
    if not parts:
        raise ClientError(f"no broker has the topic {topic}, expected a static topic")


def _plan_of_moves(topic: str, parts: Parts, targets: Sequence[str]) -> StaticPlan:
    """Return the plan after which the targets lead all queues."""
    epoch = next_epoch(parts, _now_ms())
    new = with_epoch(parts, epoch, _total_of(parts))
    _add_empty(topic, new, targets, epoch, _total_of(parts))
    check_parts(new)
    moves = balanced_moves(leaders_of(new), targets)
    move_queues(new, moves)
    check_parts(new)
    check_sizes(new)
    return StaticPlan(topic, epoch, new, moves)


def _total_of(parts: Parts) -> int:
    return max(detail_of(part).total_queues for part in parts.values())


def _add_empty(topic: str, parts: Parts, brokers: Iterable[str], epoch: int, total: int) -> None:
    """Add parts without queues for the brokers that have none."""
    for name in brokers:
        if name not in parts:
            parts[name] = empty_part(topic, name)
            detail_of(parts[name]).epoch = epoch
            detail_of(parts[name]).total_queues = total


def _moved_items(plan: StaticPlan, queue_id: int) -> list[LogicQueueMappingItem]:
    return hosted_by(plan.parts[leaders_of(plan.parts)[queue_id]])[queue_id]


def _united(parts: Parts) -> list[QueueMove]:
    """Give all parts the newest items of their queues; return the moves that have not finished."""
    moves = []
    for queue_id, name in leaders_of(parts).items():
        items = hosted_by(parts[name])[queue_id]
        last = items[-1]
        if len(items) < 2:
            continue
        source = items[-2].bname
        before = hosted_by(parts[source]).get(queue_id) if source in parts else None
        is_led_twice = before is not None and before[-1].bname == source != name
        if is_decided(last) and not is_led_twice:
            continue
        if source in parts:
            hosted_by(parts[source])[queue_id] = items
        moves.append(QueueMove(queue_id, source, name))
    return moves


def _neighbours(info: ClusterInfo, brokers: Iterable[str]) -> list[str]:
    """Return all brokers of the clusters that some brokers belong to."""
    wanted = set(brokers)
    return [
        name
        for names in info.cluster_addr_table.values()
        if wanted & {*names}
        for name in sorted(names)
    ]


def _is_uneven(plan: StaticPlan, targets: Sequence[str]) -> bool:
    return bool(balanced_moves(leaders_of(plan.parts), targets))


def _master(info: ClusterInfo, broker: str) -> str:
    """Return the address of a broker's master.

    Raises:
        ClientError: there is none.
    """
    data = info.broker_addr_table.get(broker)
    address = None if data is None else data.broker_addrs.get(MASTER_ID)
    if address is None:
        known = ", ".join(sorted(info.broker_addr_table)) or "none"
        raise ClientError(f"Can't find addr for broker {broker}; known are {known}")
    return address


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
