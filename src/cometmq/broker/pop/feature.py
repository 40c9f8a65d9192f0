"""Pop consumption: what is in flight, the held pops, and the requests and jobs for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.pop.config import PopSettings
from cometmq.broker.pop.held_pops import HeldPops
from cometmq.broker.pop.orders import Orders
from cometmq.broker.pop.request_modes import RequestModes
from cometmq.broker.pop.revive_log import ReviveLog
from cometmq.broker.pop.reviver import Reviver
from cometmq.model.errors import CometError
from cometmq.model.topic import TopicConfig, revive_topic
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Connection, Supervisor, check
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every
from cometmq.remoting.slices import decode
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.pop.acks import AckHandler
    from cometmq.broker.pop.assignment import AssignmentHandler
    from cometmq.broker.pop.notifications import NotificationHandler
    from cometmq.broker.pop.pops import PopHandler
    from cometmq.broker.pulling.feature import PullingFeature

log = logging.getLogger(__name__)

MAINTAIN_S: Final = 1.0
LOAD_RETRY_S: Final = 1.0
ORDERS_S: Final = 5.0
DROP_ORDERS_S: Final = 60.0
COPY_MODES_S: Final = 10.0
COPY_TIMEOUT_S: Final = 5.0


class PopFeature(BrokerFeature):
    """Delivers messages one by one, and redelivers those that are not acknowledged.

    Args:
        core: of the broker.
        durability: what acknowledgements wait for.
        pulling: notifies of messages.
        access: checks pops that have waited; None without access control.
        name_servers: returns the addresses of the name servers.
    """

    def __init__(
        self,
        core: Core,
        durability: DurabilityFeature,
        pulling: PullingFeature,
        access: AccessControl | None,
        name_servers: Callable[[], Iterable[str]],
    ) -> None:
        super().__init__(core)
        self._name_servers = name_servers
        settings = core.configuration.reader_of(PopSettings)
        self._settings = settings
        self._tasks = Supervisor("pop")
        topic = revive_topic(core.settings().broker_cluster_name)
        self.check_points = ReviveLog(
            core.store,
            core.offsets,
            clock=core.clock,
            cold_reads=core.cold_reads,
            topic=topic,
            queues=self._revive_queues(topic),
            broker_name=core.settings().broker_name,
        )
        """What is in flight."""
        self.held = HeldPops(pulling.arrivals, settings)
        """The held pops."""
        self.reviver = Reviver(core, self.check_points, settings, durability.wait.begin)
        """Redelivers what is not acknowledged in time."""
        self._orders_file = core.table_file("consumerOrderInfo")
        self._modes_file = core.table_file("messageRequestMode")
        self.orders = Orders(self._orders_file, clock=core.clock)
        """The ordered pops."""
        self.modes = RequestModes(self._modes_file)
        """Which groups read which topics by pop."""
        self._access = access
        self._durability = durability.wait
        self._pops = Deferred(self._make_pops)
        self._acks = Deferred(self._make_acks)
        self._waiting = Deferred(self._make_waiting)
        self._assignment = Deferred(self._make_assignment)
        self._copies = FailureLog(
            log,
            fails="cannot copy request modes, retrying",
            works="copying request modes works again",
            name="master",
        )
        self.check_points.on_load = self.reviver.schedule
        self.check_points.on_added = self.reviver.schedule

    def _revive_queues(self, topic: str) -> int:
        """Return the number of queues of the revive topic; a store may have more than are set."""
        wanted = self._settings().revive_queue_num
        known = self._core.topics.get(topic)
        return wanted if known is None else max(wanted, known.write_queue_nums)

    @property
    def acked(self) -> int:
        """How many messages were acknowledged."""
        acks = self._acks.made()
        return 0 if acks is None else acks.acked

    def _make_pops(self) -> PopHandler:
        from cometmq.broker.pop.pops import PopHandler

        return PopHandler(
            self._core,
            self.check_points,
            self.held,
            self.orders,
            self._settings,
            self.reviver.schedule,
            self._access,
        )

    def _make_acks(self) -> AckHandler:
        from cometmq.broker.pop.acks import AckHandler

        return AckHandler(
            self._core,
            self.check_points,
            self.orders,
            self.held,
            self._durability,
            self.reviver.schedule,
        )

    def _make_waiting(self) -> NotificationHandler:
        from cometmq.broker.pop.notifications import NotificationHandler

        return NotificationHandler(self._core, self._pops.get(), self.held, self.orders)

    def _make_assignment(self) -> AssignmentHandler:
        from cometmq.broker.pop.assignment import AssignmentHandler, Routes

        routes = Routes(self._core, self._name_servers)
        return AssignmentHandler(self._core, routes, self.modes, self._settings)

    async def start(self) -> None:
        """Read the files, and create the revive topic."""
        self.orders.load()
        self.modes.load()
        queues = self.check_points.queue_count
        topic = TopicConfig(
            topic_name=self.check_points.topic, read_queue_nums=queues, write_queue_nums=queues
        )
        await self._core.topics.create_all([topic])

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of pops, acknowledgements and assignments; only the main port pops."""
        self.check_points.store_host = endpoint.store_host
        pops, acks, waiting = self._pops, self._acks, self._waiting
        assignment = self._assignment
        return Feature(
            {
                RequestCode.POP_MESSAGE: pops.handler(lambda h: h.pop),
                RequestCode.PEEK_MESSAGE: pops.handler(lambda h: h.peek),
                RequestCode.NOTIFICATION: waiting.handler(lambda h: h.notify),
                RequestCode.POLLING_INFO: waiting.handler(lambda h: h.info),
                RequestCode.ACK_MESSAGE: acks.handler(lambda h: h.ack),
                RequestCode.BATCH_ACK_MESSAGE: acks.handler(lambda h: h.ack_batch),
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME: acks.handler(lambda h: h.change),
                RequestCode.QUERY_ASSIGNMENT: assignment.handler(lambda h: h.query),
                RequestCode.SET_MESSAGE_REQUEST_MODE: assignment.exclusive(lambda h: h.set_mode),
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: assignment.exclusive(
                    lambda h: h.all_modes
                ),
            },
            [
                every(MAINTAIN_S, self._maintain, "maintain-check-points"),
                Job("save-ordered-pops", lambda: ORDERS_S, self.orders.save, blocking=True),
                every(DROP_ORDERS_S, self._drop_orders, "drop-ordered-pops"),
                every(COPY_MODES_S, self._copy_modes, "copy-request-modes", first_s=1.0),
            ],
        )

    async def begin(self, endpoint: Endpoint) -> None:
        """Read what is in flight, and redeliver it when it is due."""
        if not self._core.role.is_slave:
            self._tasks.spawn(self._load(), "load-check-points")

    def role_changed(self) -> None:
        """Forget what is in flight: a new master reads it from its log."""
        self.check_points.unload()

    async def take_over(self) -> None:
        """Read what is in flight."""
        await self._load()

    async def _load(self) -> None:
        while not self._core.role.is_slave and not self.check_points.is_loaded:
            try:
                await self.check_points.load()
            except CometError as problem:
                log.warning("cannot read check points, retrying: %s", problem)
                await asyncio.sleep(LOAD_RETRY_S)

    def before_truncation(self, log_end: int) -> None:
        """Forget what is in flight: its newest records may be truncated."""
        self.check_points.unload()

    def connection_closed(self, connection: Connection) -> None:
        """Drop the held pops of the connection."""
        self.held.connection_closed(connection)

    # --- jobs -----------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        if self._core.role.is_slave:
            return
        if not self.check_points.is_loaded:
            await self._load()
        await self.check_points.read_new()
        self.check_points.maintain()

    async def _drop_orders(self) -> None:
        topics, groups = self._core.topics, self._core.groups

        def queues(topic: str, group: str) -> int:
            config = topics.get(topic)
            return 0 if config is None or groups.get(group) is None else config.read_queue_nums

        await self.orders.drop_unused(queues)

    async def _copy_modes(self) -> None:
        """Copy the request modes of the master of a slave."""
        from cometmq.protocol.bodies.pop import MessageRequestModeSerializeWrapper

        role = self._core.role
        master = role.master_address
        if not role.is_slave or not master:
            return
        try:
            code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
            response = await self._core.client.call(master, code, timeout=COPY_TIMEOUT_S)
            body = await decode(MessageRequestModeSerializeWrapper, check(response).body)
            if role.is_slave and role.master_address == master:
                await self.modes.copy(body.message_request_mode_map)
        except CometError as problem:
            self._copies.failed(master, problem)
        else:
            self._copies.succeeded(master)

    # --- the end --------------------------------------------------------------------------------

    async def end(self) -> None:
        """Respond to the held pops, and revive nothing any more."""
        self.held.close()
        await self._tasks.cancel()
        await self.reviver.stop()
        if (pops := self._pops.made()) is not None:
            await pops.stop()

    async def close(self) -> None:
        """End the acknowledgements that wait for a file of the log."""
        if (acks := self._acks.made()) is not None:
            await acks.stop()

    def save(self) -> None:
        """Write the ordered pops, and where the records begin that count."""
        try:
            if self.check_points.is_loaded:
                self.check_points.commit_base()
            self.orders.save()
        finally:
            self._orders_file.close()
            self._modes_file.close()
