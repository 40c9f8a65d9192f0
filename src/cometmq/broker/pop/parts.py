"""The parts of pop consumption, built together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cometmq.broker.pop.acks import AckHandler
from cometmq.broker.pop.assignment import AssignmentHandler, Routes
from cometmq.broker.pop.config import PopSettings
from cometmq.broker.pop.held_pops import HeldPops
from cometmq.broker.pop.notifications import NotificationHandler
from cometmq.broker.pop.orders import Orders
from cometmq.broker.pop.part import PopState
from cometmq.broker.pop.pops import PopHandler
from cometmq.broker.pop.request_modes import RequestModes
from cometmq.broker.pop.revive_log import ReviveLog
from cometmq.broker.pop.reviver import Reviver
from cometmq.model.errors import CometError
from cometmq.model.topic import revive_topic
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import read_at_once
from cometmq.protocol.headers.pop import AckMessageRequest, PopMessageRequest

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.core import Core
    from cometmq.broker.durability.wait import DurabilityWait
    from cometmq.broker.pulling.arrivals import Arrivals
    from cometmq.store.config_files import JsonFile

log = logging.getLogger(__name__)

read_at_once(PopMessageRequest, RequestCode.POP_MESSAGE)
read_at_once(AckMessageRequest, RequestCode.ACK_MESSAGE)


class PopParts:
    """What is in flight, what waits, and what handles the requests.

    Args:
        core: of the broker.
        durability: what responses wait for.
        arrivals: notify of messages.
        access: checks pops that have waited; None without access control.
        name_servers: returns the addresses of the name servers.
        queues: returns the number of queues of the revive topic.
        orders_file, modes_file: consumerOrderInfo.json and messageRequestMode.json.

    Raises:
        StoreError: one of the files cannot be read.
    """

    def __init__(
        self,
        core: Core,
        durability: DurabilityWait,
        arrivals: Arrivals,
        access: AccessControl | None,
        name_servers: Callable[[], Iterable[str]],
        *,
        queues: Callable[[], int],
        orders_file: JsonFile,
        modes_file: JsonFile,
    ) -> None:
        self._core = core
        self._queues = queues
        self.settings = settings = core.configuration.reader_of(PopSettings)
        """Returns the current settings."""
        self.check_points = self._new_log(lambda: not core.role.is_slave)
        """What is in flight."""
        self.orders = Orders(orders_file, clock=core.clock)
        """The ordered pops."""
        self.orders.load()
        self.modes = RequestModes(modes_file)
        """Which groups read which topics by pop."""
        self.modes.load()
        self.held = HeldPops(arrivals, settings)
        """The held pops."""
        self.reviver = Reviver(core, self.check_points, settings, durability.begin)
        """Redelivers what is not acknowledged in time."""
        self.check_points.on_load = self.check_points.on_added = self.reviver.schedule
        state = PopState(
            core,
            self.check_points,
            self.orders,
            self.held,
            durability,
            settings,
            access,
            self.reviver.schedule,
        )
        self.pops = PopHandler(state)
        self.acks = AckHandler(state)
        self.notifications = NotificationHandler(state, self.pops)
        self.assignment = AssignmentHandler(core, Routes(core, name_servers), self.modes, settings)

    async def forget(self, *, topic: str = "", group: str = "") -> None:
        """Drop what belongs to a topic or a group that was deleted.

        What a deleted group has in flight is dropped when it is due, as in RocketMQ.
        """
        await self.held.rerun_deleted(topic=topic, group=group)
        await self.orders.forget_all(topic=topic, group=group)
        try:
            await self.modes.forget(topic=topic, group=group)
            if topic:
                await self.check_points.forget(topic)
        except CometError as problem:
            log.warning(
                "what was popped of a deleted topic or group is still there topic=%s group=%s: %s",
                *(topic, group, problem),
            )

    def log_of_master(self) -> ReviveLog:
        """Return what the log of a slave says is in flight; not for records of its own."""
        return self._new_log(lambda: True)

    def _new_log(self, may_load: Callable[[], bool]) -> ReviveLog:
        core = self._core
        return ReviveLog(
            core.store,
            core.offsets,
            clock=core.clock,
            cold_reads=core.cold_reads,
            may_load=may_load,
            topic=revive_topic(core.settings().broker_cluster_name),
            queues=self._queues,
            broker_name=core.settings().broker_name,
        )
