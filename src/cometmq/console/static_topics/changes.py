"""Creates static topics, and moves their logical queues between brokers."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec

from cometmq.client.admin.static_plans import QueueMove, leaders_of
from cometmq.console.changes import Change
from cometmq.console.forms import Form
from cometmq.console.pages import Name, address
from cometmq.console.reads import Reads
from cometmq.console.static_topics.page import clear_on_old_brokers
from cometmq.model.topic import QUEUES_MAX

MOVES_SHOWN = 200
MOVE_S = 120.0
"""Brokers get parts of up to 1 MiB, one after the other."""
Brokers = Annotated[list[str], msgspec.Meta(description="Names of brokers, one a line.")]


class CreateStaticTopic(Form):
    """A static topic, or more queues for one."""

    topic: Name
    queues: Annotated[
        int,
        msgspec.Meta(ge=1, le=QUEUES_MAX, description="Logical queues. They can grow, not fall."),
    ]
    brokers: Annotated[
        list[str],
        msgspec.Meta(description="Brokers that get the new queues, one a line; all if none."),
    ] = msgspec.field(default_factory=list)


class Share(msgspec.Struct):
    """How many logical queues a broker leads."""

    broker: str
    leads_now: int
    leads_then: int


class Shares(msgspec.Struct):
    """How many logical queues each broker leads."""

    topic: str
    queues_now: int
    queues_then: int
    brokers: list[Share]


async def planned(reads: Reads, form: CreateStaticTopic) -> Shares:
    """Return which brokers get the new queues: first the brokers with the fewest queues."""
    await reads.check_name(form.topic)
    targets = form.brokers or sorted({each.name for each in await reads.brokers()})
    with clear_on_old_brokers():
        plan = await reads.admin.plan_static_topic(form.topic, form.queues, targets)
        now = leaders_of(await reads.admin.static_parts(form.topic))
    return _shares(form.topic, now, leaders_of(plan.parts))


def _shares(topic: str, now: dict[int, str], then: dict[int, str]) -> Shares:
    before, after = Counter(now.values()), Counter(then.values())
    names = sorted(before.keys() | after.keys())
    rows = [Share(name, before[name], after[name]) for name in names]
    return Shares(topic, len(now), len(then), rows)


async def create(reads: Reads, form: CreateStaticTopic) -> Shares:
    """Create the topic, or add queues."""
    await reads.check_name(form.topic)
    brokers = form.brokers or None
    with clear_on_old_brokers():
        now = leaders_of(await reads.admin.static_parts(form.topic))
    then = await reads.admin.create_static_topic(form.topic, form.queues, brokers=brokers)
    return _shares(form.topic, now, then)


class MoveQueues(Form):
    """The brokers that lead all queues of a static topic afterwards."""

    topic: Name
    brokers: Brokers
    lost: Annotated[
        Name | None,
        msgspec.Meta(description="A broker whose master is lost; a slave of it has to be there."),
    ] = None


class Move(msgspec.Struct):
    """A logical queue that gets another broker."""

    queue: int
    source: str
    target: str


class Moves(msgspec.Struct):
    """Moves of logical queues. The messages that are stored stay where they are."""

    topic: str
    moves_total: int
    moves: list[Move]


async def planned_moves(reads: Reads, form: MoveQueues) -> Moves:
    """Return the fewest moves; a move that has not finished is one of them."""
    with clear_on_old_brokers():
        plan = await reads.admin.plan_queue_moves(form.topic, form.brokers, lost=form.lost)
    return _moves(form.topic, plan.moves)


def _moves(topic: str, moves: list[QueueMove]) -> Moves:
    return Moves(topic, len(moves), [Move(*each) for each in moves[:MOVES_SHOWN]])


async def move(reads: Reads, form: MoveQueues) -> Moves:
    """Move the queues, while clients run."""
    with clear_on_old_brokers():
        made = await reads.admin.move_static_queues(form.topic, form.brokers, lost=form.lost)
    return _moves(form.topic, made)


def _to_topic(form: CreateStaticTopic | MoveQueues) -> str:
    return address("/topics/static/topic", topic=form.topic)


CHANGES = (
    Change(
        "/topics/static/create", "Create a static topic", CreateStaticTopic, create, Shares,
        preview=planned, previewed=Shares, back=_to_topic, seconds=MOVE_S,
    ),
    Change(
        "/topics/static/move", "Move queues", MoveQueues, move, Moves,
        preview=planned_moves, previewed=Moves, back=_to_topic, seconds=MOVE_S,
    ),
)  # fmt: skip
