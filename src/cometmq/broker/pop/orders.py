"""Ordered pops: what a group has popped of each queue, in order, and has not acknowledged.

    consumerOrderInfo.json := {"table": {topic@group: {queue: order}}}
    order := {popTime, i invisible time, o offsets, ot {offset: visible time},
              oc {offset: deliveries before}, l last time, cm bits of those acknowledged, a attempt}

``o`` has the first offset, then the distances of the others from it. A queue is blocked while one
of its messages is invisible and not acknowledged. The committed offset is the first message that is
not acknowledged, so redelivery begins there and no retry topic is needed.

The file is written in the background; after a crash the messages are redelivered from the committed
offset. Source: ConsumerOrderInfoManager, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.model.errors import StoreError
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.remoting.slices import Slices
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

KEPT_MS: Final = 24 * 3_600_000
"""An order that is not used for this long is forgotten."""
UNKNOWN, IGNORED = -1, -2
"""Outcomes of an acknowledgement without an offset to commit."""


class Order(msgspec.Struct):
    """The messages of one queue that the last ordered pop has delivered."""

    pop_ms: int = msgspec.field(name="popTime", default=0)
    invisible_ms: int = msgspec.field(name="i", default=0)
    packed: list[int] = msgspec.field(name="o", default_factory=list)
    visible: dict[int, int] = msgspec.field(name="ot", default_factory=dict)
    """When messages are visible whose invisible time was changed."""
    deliveries: dict[int, int] = msgspec.field(name="oc", default_factory=dict)
    """How often messages were delivered before."""
    used_ms: int = msgspec.field(name="l", default=0)
    acked: int = msgspec.field(name="cm", default=0)
    attempt: str | None = msgspec.field(name="a", default=None)

    def offsets(self) -> list[int]:
        """Return the offsets of the messages."""
        first = self.packed[0]
        return [first, *(first + distance for distance in self.packed[1:])]

    def visible_ms(self, offset: int) -> int:
        """Return when a message is visible again."""
        return self.visible.get(offset, self.pop_ms + self.invisible_ms)

    def follow_clock(self, now_ms: int) -> None:
        """Move the times back as the clock was set back since the last use, if it was."""
        back_ms = self.used_ms - now_ms
        if back_ms > 0:
            self.visible = {each: self.visible_ms(each) - back_ms for each in self.offsets()}
            self.used_ms = now_ms

    def blocked_to_ms(self, now_ms: int) -> int:
        """Return until when the queue is blocked; 0 if it is not."""
        return max(
            (
                until
                for n, offset in enumerate(self.offsets())
                if not self.acked >> n & 1 and (until := self.visible_ms(offset)) > now_ms
            ),
            default=0,
        )


class Orders:
    """The ordered pops of all groups.

    Args:
        file: consumerOrderInfo.json.
        clock: the time.
    """

    def __init__(self, file: JsonFile, *, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._table: dict[str, dict[int, Order]] = {}
        self._is_changed = False

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreError: it cannot be read.
        """
        content = self._file.load() or {}
        table: dict[str, dict[int, Order]] = {}
        try:
            for key, queues in (content.get("table") or {}).items():
                for number, entry in queues.items():
                    order = read_struct(entry, Order)
                    if order.packed:
                        table.setdefault(key, {})[int(number)] = order
        except (AttributeError, TypeError, ValueError, FastJsonError) as problem:
            raise StoreError(
                f"cannot read {self._file.path}: {problem}, expected"
                ' {"table": {"TOPIC@GROUP": {"QUEUE": ORDER}}}; without the file the messages of'
                " ordered pops are redelivered from the committed offsets"
            ) from problem
        self._table = table
        self._is_changed = False

    def save(self) -> None:
        """Write the file if anything has changed; from any thread.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        if not self._is_changed:
            return
        self._is_changed = False
        try:
            self._file.save({"table": {key: dict(of) for key, of in list(self._table.items())}})
        except StoreError:
            self._is_changed = True
            raise

    def find(self, group: str, topic: str, queue_id: int) -> Order | None:
        """Return what the last ordered pop of a queue has delivered."""
        order = self._table.get(f"{topic}@{group}", {}).get(queue_id)
        if order is not None:
            order.follow_clock(self._clock.now_ms())
        return order

    def blocked_to_ms(self, group: str, topic: str, queue_id: int, attempt: str | None) -> int:
        """Return until when a queue is blocked; 0 if a pop may read it now."""
        order = self.find(group, topic, queue_id)
        if order is None or (attempt is not None and attempt == order.attempt):
            return 0
        return order.blocked_to_ms(self._clock.now_ms())

    def popped(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offsets: list[int],
        pop_ms: int,
        invisible_ms: int,
        attempt: str | None,
    ) -> dict[int, int]:
        """Note a pop; return how often its messages were delivered before, if they were."""
        before = self.find(group, topic, queue_id)
        deliveries: dict[int, int] = {}
        if before is not None:
            is_repeated = attempt is not None and attempt == before.attempt
            known = {*before.offsets()}
            for offset in offsets:
                if offset in known:
                    count = before.deliveries.get(offset, 0) + (0 if is_repeated else 1)
                    if count:
                        deliveries[offset] = count
        first = offsets[0]
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = Order(
            pop_ms,
            invisible_ms,
            [first, *(offset - first for offset in offsets[1:])],
            {},
            deliveries,
            self._clock.now_ms(),
            0,
            attempt,
        )
        self._is_changed = True
        return deliveries

    def acknowledge(
        self, group: str, topic: str, queue_id: int, offset: int, pop_ms: int, committed: int
    ) -> int:
        """Acknowledge a message.

        If no pop is known, as after a change of the master, the next message in order counts; the
        others are redelivered. RocketMQ skips those before an acknowledged one then.

        Returns:
            The offset to commit; `IGNORED` for the receipt of another pop, `UNKNOWN` for a message
            that was not popped.
        """
        order = self.find(group, topic, queue_id)
        if order is None:
            return offset + 1 if offset == committed else IGNORED
        if order.pop_ms != pop_ms:
            return IGNORED
        offsets = order.offsets()
        if offset not in offsets:
            return UNKNOWN
        order.acked |= 1 << offsets.index(offset)
        order.used_ms = self._clock.now_ms()
        self._is_changed = True
        for n, each in enumerate(offsets):
            if not order.acked >> n & 1:
                return each
        return offsets[-1] + 1

    def change_invisible(
        self, group: str, topic: str, queue_id: int, offset: int, pop_ms: int, visible_ms: int
    ) -> None:
        """Set when a message is visible again."""
        order = self.find(group, topic, queue_id)
        if order is not None and order.pop_ms == pop_ms and offset in order.offsets():
            order.visible[offset] = visible_ms
            order.used_ms = self._clock.now_ms()
            self._is_changed = True

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """Forget an order: the offset of the group was reset."""
        if self._table.get(f"{topic}@{group}", {}).pop(queue_id, None) is not None:
            self._is_changed = True

    async def forget_all(self, *, topic: str = "", group: str = "") -> None:
        """Forget the orders of a topic or of a group that was deleted."""
        async for key in Slices().each(list(self._table)):
            name, _, of = key.partition("@")
            if topic == name or group == of:
                self._table.pop(key, None)
                self._is_changed = True

    async def drop_unused(self, queues: Callable[[str, str], int]) -> None:
        """Forget orders that are not used any more.

        Args:
            queues: returns the number of queues of a topic for a group; 0 if one of them is gone.
        """
        now_ms = self._clock.now_ms()
        async for key in Slices().each(list(self._table)):
            topic, _, group = key.partition("@")
            count = queues(topic, group)
            of = self._table.get(key, {})
            for queue_id, order in list(of.items()):
                if queue_id >= count or now_ms - order.used_ms > KEPT_MS:
                    del of[queue_id]
                    self._is_changed = True
            if not of and key in self._table:
                del self._table[key]
