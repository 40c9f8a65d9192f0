"""Commands about static topics, which write the mappings before and after to files.

Source: UpdateStaticTopicSubCommand and RemappingStaticTopicSubCommand, RocketMQ 5.3, which accept a
file of a mapping and ignore it, and end with exit code 0 after a failure.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from cometmq.cli.mqadmin.call import Call, CommandError
from cometmq.client.admin import QueueMove, StaticPlan
from cometmq.model.errors import CometError
from cometmq.protocol.bodies.topic import TopicConfigAndQueueMapping, TopicRemappingDetailWrapper
from cometmq.protocol.logical_queues import is_decided

CREATE, REMAP = "CREATE_OR_UPDATE", "REMAPPING"
Parts = dict[str, TopicConfigAndQueueMapping]


async def update_static_topic(call: Call) -> None:
    """Create a static topic, or give one more logical queues."""
    topic = call.text("t")
    if call.has("mf"):
        plan = _read(call.text("mf"), topic)
        await call.admin.write_static_parts(plan, sorted(plan.parts), force=call.true("fr"))
        return
    queues = call.number("qn")
    targets = await _targets(call)
    before = await call.admin.static_parts(topic)
    plan = await call.admin.plan_static_topic(topic, queues, targets)
    _write_before(topic, before)
    _write(plan, CREATE, "new", "after")
    await call.admin.write_static_parts(plan, sorted(plan.parts))


async def remapping_static_topic(call: Call) -> None:
    """Move the logical queues of a static topic to some brokers."""
    topic = call.text("t")
    if call.has("mf"):
        plan = _read(call.text("mf"), topic)
        await call.admin.run_static_plan(plan, leaves_gap=True, force=call.true("fr"))
        return
    targets = await _targets(call)
    before = await call.admin.static_parts(topic)
    if not before:
        raise CommandError("No topic route to do the remapping")
    plan = await call.admin.plan_remapping(topic, targets)
    _write_before(topic, before)
    _write(plan, REMAP, "old", "after")  # RocketMQ says so of both files
    await call.admin.run_static_plan(plan, leaves_gap=True)


async def _targets(call: Call) -> list[str]:
    """Return the brokers that ``-b`` names, or those of the clusters of ``-c``."""
    if call.has("b"):
        return _names(call.text("b"))
    clusters = (await call.admin.cluster_info()).cluster_addr_table
    found = [name for each in _names(call.text("c")) for name in sorted(clusters.get(each, ()))]
    if not found:
        raise CommandError("Find none brokers, do nothing")
    return found


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _write_before(topic: str, parts: Parts) -> None:
    details = [part.mapping_detail for part in parts.values() if part.mapping_detail]
    epoch = details[0].epoch if details else time.time_ns() // 1_000_000
    _write(StaticPlan(topic, epoch, parts), CREATE, "old", "before")


def _write(plan: StaticPlan, kind: str, said: str, suffix: str) -> None:
    """Write the mappings of a plan to a file, and print its name."""
    wrapper = TopicRemappingDetailWrapper(
        topic=plan.topic,
        type=kind,
        epoch=plan.epoch,
        broker_config_map=plan.parts,
        broker_to_map_in=plan.gaining,
        broker_to_map_out=plan.losing,
    )
    path = Path(tempfile.gettempdir()) / f"{plan.topic}-{plan.epoch}.{suffix}"
    try:
        if path.exists():
            path.replace(path.with_name(f"{path.name}.bak"))
        path.write_bytes(wrapper.encode())
    except OSError as problem:
        raise CommandError(f"cannot write {path}: {problem.strerror}") from problem
    print(f"The {said} mapping data is written to file {path}")


def _read(name: str, topic: str) -> StaticPlan:
    """Read the mappings that a command has written.

    Raises:
        CommandError: the file has none, or those of another topic.
    """
    try:
        wrapper = TopicRemappingDetailWrapper.decode(Path(name).read_bytes())
    except (OSError, CometError) as problem:
        raise CommandError(f"-mf {name}: {problem}") from problem
    if wrapper.topic != topic:
        raise CommandError(f"-mf {name}: met topic {wrapper.topic}, expected {topic}")
    moves: dict[int, QueueMove] = {}
    for part in wrapper.broker_config_map.values():
        hosted = (part.mapping_detail.hosted_queues if part.mapping_detail else None) or {}
        for queue_id, (*older, last) in hosted.items():
            if older and last.bname in wrapper.broker_to_map_in and not is_decided(last):
                moves[queue_id] = QueueMove(queue_id, older[-1].bname, last.bname)
    return StaticPlan(topic, wrapper.epoch, wrapper.broker_config_map, list(moves.values()))
