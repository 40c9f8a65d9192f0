"""The change that recalls a timer message before it is due."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq.client.admin import TimerState
from cometmq.client.errors import TopicNotFoundError
from cometmq.console.changes import Change
from cometmq.console.forms import Form
from cometmq.console.pages import Name, NotFoundError, address
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError, InvalidMessageError
from cometmq.protocol.recall_handle import decode_handle

Handle = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=2048,
        description="Recall handle, unique id or key; a key may be that of several messages.",
    ),
]


class RecallTimer(Form):
    """A timer message of a topic."""

    topic: Name
    handle: Handle


class TimerToRecall(msgspec.Struct):
    """A timer message that is to be recalled."""

    id: str
    broker: str
    due_time_ms: int


class TimersToRecall(msgspec.Struct):
    """The timer messages that are to be recalled: they are never delivered."""

    topic: str
    timers: list[TimerToRecall]


class Recalled(msgspec.Struct):
    """The timer messages that were recalled."""

    topic: str
    ids: list[str]
    not_recalled: list[str]
    """The ids of others, with the reason."""


async def _handles(reads: Reads, form: RecallTimer) -> list[str]:
    """Return the handles of the messages that wait.

    Raises:
        NotFoundError: there are none.
    """
    try:
        decode_handle(form.handle)
    except InvalidMessageError:
        pass
    else:
        return [form.handle]
    try:
        found = await reads.admin.find_timers(form.topic, form.handle)
    except TopicNotFoundError:
        raise NotFoundError(f"there is no topic {form.topic}") from None
    handles = [each.handle for each in found if each.state is TimerState.WAITING]
    if not handles:
        raise NotFoundError(
            f"no broker of {form.topic} has a timer message with the id or key {form.handle} that"
            " waits; expected a recall handle, or the unique id or a key of one"
        )
    return handles


async def to_recall(reads: Reads, form: RecallTimer) -> TimersToRecall:
    """Return what `recall` would do."""
    handles = [decode_handle(each) for each in await _handles(reads, form)]
    return TimersToRecall(
        form.topic,
        [
            TimerToRecall(each.message_id, each.broker_name, _number(each.timestamp_ms))
            for each in handles
        ],
    )


async def recall(reads: Reads, form: RecallTimer) -> Recalled:
    """Recall the messages; an error of one does not keep the others.

    Raises:
        CometError: none was recalled.
    """
    ids: list[str] = []
    errors: list[tuple[str, CometError]] = []
    for handle in await _handles(reads, form):
        try:
            ids.append(await reads.admin.recall(form.topic, handle))
        except CometError as error:
            errors.append((decode_handle(handle).message_id, error))
    if not ids:
        raise errors[0][1]
    return Recalled(form.topic, ids, [f"{name}: {error}" for name, error in errors])


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 0


RECALL = Change(
    "/timers/recall", "Recall a timer message", RecallTimer, recall, Recalled,
    preview=to_recall, previewed=TimersToRecall, back=lambda form: address("/timers"),
)  # fmt: skip
