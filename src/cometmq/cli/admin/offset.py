"""``cometmq admin offset``: the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.admin.arguments import GroupName, TopicName, queue_of
from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.group import check_committed, check_exists
from cometmq.cli.admin.output import Change, Rows
from cometmq.model.errors import ConfigError
from cometmq.model.times import time_of

if TYPE_CHECKING:
    from cometmq.client.admin import GroupLag
    from cometmq.model.queue import MessageQueue

app = Commands("Committed offsets: show, reset, skip and copy them.")

EARLIEST, LATEST = "earliest", "latest"


@app.show("show", "broker queue min_offset committed end lag", watch=True)
async def show(call: Call, group: GroupName, topic: TopicName) -> Rows:
    """Show the committed offset of a group in each queue of a topic."""
    now = await call.admin.lag(group, topic)
    await check_committed(call, group, now, topic)
    return [
        (
            *(queue.broker_name, queue.queue_id, int(found.begin)),
            None if found.committed is None else int(found.committed),
            *(int(found.end), found.lag),
        )
        for queue, found in sorted(now.items())
    ]


@app.show("at", "broker queue offset")
async def at(
    call: Call,
    topic: TopicName,
    when: Annotated[str, typer.Argument(help="Time: now, 2h ago as 2h, ISO 8601, or ms.")],
) -> Rows:
    """Show the offset of the first message stored at or after a time, in each queue."""
    found = await call.admin.offsets_at(topic, time_of(when))
    return [(each.broker_name, each.queue_id, int(offset)) for each, offset in found.items()]


@app.change("reset")
async def reset(
    call: Call,
    group: GroupName,
    topic: TopicName,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="earliest, latest, or a time: 2h for two hours ago, ISO 8601, or ms.",
            metavar="TIME",
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", help="Only this queue, with --offset.", metavar="BROKER:NUMBER"),
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="Offset for the one queue.")
    ] = None,
    only_back: Annotated[
        bool, typer.Option("--only-back", help="Do not move the group forward.")
    ] = False,
) -> list[Change]:
    """Reset a group to a time, or to an offset of one queue; online members move too.

    Brokers of 5.2 and later move the group forward even with --only-back; it is then refused.
    """
    if (to is None) == (queue is None) or (queue is None) != (offset is None):
        raise ConfigError("expected --to, or --queue with --offset")
    now = await call.admin.lag(group, topic)
    await check_exists(call, group, now)
    if queue is not None and offset is not None:
        return [_reset_queue(call, group, now, queue, offset)]
    if to == LATEST:
        return _moved(
            group,
            now,
            {each: int(found.end) for each, found in now.items()},
            partial(call.admin.skip_backlog, group, topic),
        )
    when = 0 if to == EARLIEST else time_of(to or "")
    targets = await call.admin.offsets_at(topic, when)
    forward = [each for each, found in now.items() if _is_forward(found, targets.get(each))]
    if only_back and forward:
        raise ConfigError(f"--only-back: the reset would move the group forward in {forward[0]}")
    run = partial(call.admin.reset_to_time, group, topic, when, force=not only_back)
    return _moved(group, now, targets, run)


def _is_forward(found: GroupLag, target: int | None) -> bool:
    return found.committed is not None and target is not None and target > found.committed


def _reset_queue(
    call: Call, group: str, now: dict[MessageQueue, GroupLag], text: str, offset: int
) -> Change:
    broker, number = queue_of(text)
    for queue, found in now.items():
        if (queue.broker_name, queue.queue_id) == (broker, number):
            if not found.begin <= offset <= found.end:
                raise ConfigError(
                    f"--offset {offset}: queue {text} of {queue.topic} has the offsets"
                    f" {int(found.begin)} to {int(found.end)}"
                )
            run = partial(call.admin.reset_to_offset, group, queue, offset)
            return _moved(group, {queue: found}, {queue: offset}, run)[0]
    raise ConfigError(f"queue {text}: expected one of {', '.join(map(_short, now))}")


def _short(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _moved(
    group: str,
    now: dict[MessageQueue, GroupLag],
    targets: dict[MessageQueue, int],
    run: Callable[[], Awaitable[object]],
) -> list[Change]:
    """Return a change for each queue, of which the first makes all."""
    changes: list[Change] = []
    for queue, found in sorted(now.items()):
        target = int(targets.get(queue, found.end))
        before = "none" if found.committed is None else str(int(found.committed))
        if skipped := found.skipped(target):
            effect = f"skips {skipped}"
        elif target < found.next:
            effect = f"redelivers {found.repeated(target)}"
        else:
            effect = "no change"
        changes.append(
            Change(
                f"move group {group}",
                f"{queue.topic} {_short(queue)}",
                None if changes else run,
                f"{before} -> {target}, {effect}",
                destroys=True,
            )
        )
    if not changes:
        raise ConfigError(f"no queue can be read, so group {group} cannot be moved")
    return changes


@app.change("skip")
async def skip(call: Call, group: GroupName, topic: TopicName) -> list[Change]:
    """Move a group to the end of every queue of a topic: skip the backlog."""
    now = await call.admin.lag(group, topic)
    await check_exists(call, group, now)
    ends = {queue: int(found.end) for queue, found in now.items()}
    return _moved(group, now, ends, partial(call.admin.skip_backlog, group, topic))


@app.change("clone")
async def clone(
    call: Call,
    source: Annotated[str, typer.Argument(help="Group to copy from.")],
    target: Annotated[str, typer.Argument(help="Group to copy to; stop its members first.")],
    topics: Annotated[list[str], typer.Argument(help="Topics.")],
) -> list[Change]:
    """Copy the committed offsets of one group to another, for some topics."""
    changes: list[Change] = []
    found_of = await call.side_by_side(topics, partial(call.admin.committed, source))
    old_of = await call.side_by_side(topics, partial(call.admin.committed, target))
    for topic, found, old in zip(topics, found_of, old_of, strict=True):
        detail = ", ".join(
            f"{_short(queue)} {'none' if old[queue] is None else old[queue]} -> {offset}"
            for queue, offset in sorted(found.items())
            if offset is not None
        )
        if not detail:
            raise ConfigError(f"group {source} has no committed offset in {topic}")
        run = partial(call.admin.clone_offsets, source, target, [topic])
        changes.append(
            Change(f"copy offsets of {source} to {target}", topic, run, detail, destroys=True)
        )
    return changes
