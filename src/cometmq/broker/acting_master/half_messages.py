"""Sends the undecided half messages of a slave that acts as the master to other brokers.

No decision can arrive at the slave, so half messages of any age are sent. The broker that gets one
checks it. The slave commits the offset up to which all are sent or decided; the master takes that
offset over when it returns.

Source: TransactionalMessageServiceImpl.check, RocketMQ 5.3, which gives up a half message that no
other broker takes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.transactions.half_message import HalfMessage
from cometmq.broker.transactions.half_queue import HalfQueue
from cometmq.model.errors import CometError
from cometmq.remoting.slices import Slices

log = logging.getLogger(__name__)

COMMIT_AFTER: Final = 100
"""Messages sent between two commits: what is sent after the last one is sent again by the master
if this broker is killed."""


async def send_undecided(
    halves: HalfQueue,
    send: Callable[[HalfMessage], Awaitable[None]],
    is_over: Callable[[], bool],
) -> None:
    """Send what is undecided, in its order, up to the first that no other broker takes.

    Args:
        halves: the half messages.
        send: sends one.
        is_over: returns whether to end before the next one.
    """
    sent = 0
    slices = Slices()
    try:
        if is_over() or not await halves.load(reads_only=True):
            return
        async for half in halves.undecided(slices):
            if is_over():
                break
            if not halves.is_decided_copy(half):
                await send(half)
                sent += 1
            halves.skip(half.queue_offset)
            if sent % COMMIT_AFTER == 0:
                await halves.commit_offsets(halves.first_open(0), slices)
    except CometError as problem:
        log.warning("undecided half messages wait, retrying: %s", problem)
    if sent:
        log.info("sent undecided half messages to other brokers count=%d", sent)
    if halves.is_loaded:
        await halves.commit_offsets(halves.first_open(0), slices)
