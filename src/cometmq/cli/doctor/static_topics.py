"""Checks that the mappings of a static topic agree, and that each of its queues has a leader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cometmq.cli.doctor.cluster import Cluster
from cometmq.cli.doctor.findings import Finding, Level
from cometmq.client.admin.static_plans import Parts, hosted_by, leaders_of
from cometmq.model.errors import CometError
from cometmq.protocol.bodies.route import TopicQueueMappingInfo, TopicRouteData
from cometmq.protocol.logical_queues import is_decided

PAGE = "see docs/howto/move-queues.md"
Infos = Mapping[str, TopicQueueMappingInfo]


async def static_findings(cluster: Cluster, topic: str, route: TopicRouteData) -> list[Finding]:
    """Return what is wrong with a static topic; nothing for another topic."""
    infos = route.topic_queue_mapping_by_broker or {}
    if not infos:
        return []
    present = {data.broker_name for data in route.broker_datas}
    # A broker that was removed stays in the route; it needs no newer mapping.
    here = {name: info for name, info in infos.items() if info.bname in present}
    found = [*_leaders(topic, infos, present), *_epochs(topic, here)]
    try:
        parts = await cluster.admin.static_parts(topic)
    except CometError as problem:
        found.append(
            Finding(
                "topics", Level.PROBLEM, topic, f"a mapping cannot be read: {problem}",
                "a mapping at every broker", f"start the broker; {PAGE}",
            )
        )  # fmt: skip
    else:
        found += _undecided(topic, parts)
    return found


def _leaders(topic: str, infos: Infos, present: set[str]) -> Iterator[Finding]:
    newest: dict[int, TopicQueueMappingInfo] = {}
    for info in sorted(infos.values(), key=lambda each: each.epoch):
        newest |= dict.fromkeys(info.curr_id_map, info)
    total = max(info.total_queues for info in infos.values())
    if missing := sorted(set(range(total)) - newest.keys()):
        yield Finding(
            "topics", Level.PROBLEM, topic, f"no broker leads queues {_numbers(missing)}",
            "one broker for each queue", f"start the broker that has led them; {PAGE}",
        )  # fmt: skip
    for broker in sorted({info.bname for info in newest.values()} - present):
        led = sorted(queue for queue, info in newest.items() if info.bname == broker)
        yield Finding(
            "topics", Level.PROBLEM, topic,
            f"queues {_numbers(led)} are led by broker {broker}, which is away",
            "a broker that is registered",
            f"start it, or cometmq admin topic move-queues {topic} --lost {broker} --to OTHER;"
            f" {PAGE}",
        )  # fmt: skip


def _epochs(topic: str, infos: Infos) -> Iterator[Finding]:
    epochs = {info.bname: info.epoch for info in infos.values()}
    if len(set(epochs.values())) > 1:
        newest = max(epochs.values())
        old = sorted(name for name, epoch in epochs.items() if epoch < newest)
        yield Finding(
            "topics", Level.WARNING, topic,
            f"the mappings of {', '.join(old)} are older than those of the other brokers",
            "one epoch at all brokers",
            "wait for a move that runs now, or finish it with cometmq admin topic move-queues"
            f" {topic} --to BROKER; {PAGE}",
        )  # fmt: skip


def _undecided(topic: str, parts: Parts) -> Iterator[Finding]:
    for queue_id, name in leaders_of(parts).items():
        if not is_decided(hosted_by(parts[name])[queue_id][-1]):
            yield Finding(
                "topics", Level.PROBLEM, topic,
                f"consumers cannot read the new messages of queue {queue_id} at {name}: the begin"
                " of its last item is undecided",
                "a move of queues that has finished",
                f"cometmq admin topic move-queues {topic} --to {name}; {PAGE}",
            )  # fmt: skip


def _numbers(queues: list[int]) -> str:
    return ", ".join(map(str, queues))
