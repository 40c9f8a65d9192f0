"""A slave that acts as the master while there is none.

Name servers with ``supportActingMaster=true`` show clients the slave with the smallest id as a
master without write permission. That slave then

    scheduled messages     sends those that are due to other brokers of their topics
    timer messages         too
    transactions           sends undecided half messages to other brokers of their topics
    popped messages        sends those that are due to their retry topics at other brokers

if ``enableRemoteEscape=true``; else all wait for the master. What it has sent is in its schedule
offsets, its passed slots and the committed offsets of the half queue and of the revive group, which
the master takes over when it returns.

It acts if no name server has a master or a smaller id, and the master has sent nothing for two
heartbeats of the log's connection: a master that only lost its name servers goes on delivering. It
ends when the master is there again, or announces that it is about to be (EXCHANGE_BROKER_HA_INFO);
the response to that waits for the messages that are being sent.

Source: BrokerController.updateMinBroker and BrokerPreOnlineService, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.broker.acting_master.member_query import broker_set_addresses
from cometmq.broker.core import Core
from cometmq.broker.delay.delivery import ScheduledDelivery
from cometmq.broker.registration.name_servers import Registration
from cometmq.broker.role import MASTER_ID
from cometmq.broker.timers.delivery import TimerDelivery
from cometmq.broker.transactions.half_queue import HalfQueue
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.broker_admin import ExchangeBrokerHaInfoRequest
from cometmq.protocol.headers.namesrv import GetBrokerMemberGroupRequest
from cometmq.remoting import Request, Response, Supervisor
from cometmq.system.failure_log import FailureLog
from cometmq.system.settings import ADDRESS

if TYPE_CHECKING:
    from cometmq.broker.acting_master.other_brokers import OtherBrokers
    from cometmq.broker.acting_master.popped_messages import PoppedMessages

log = logging.getLogger(__name__)

POPPED_S: Final = 1.0
"""How often it is looked for popped messages that are due."""
RETURN_S: Final = 30.0
"""How long a slave waits for a master that has announced itself."""
_NAME_SERVERS: Final = "name servers"


class ActingMaster:
    """Begins and ends to act as the master, by what the name servers know.

    Args:
        core: of the broker; only a slave acts as the master.
        registration: knows the name servers.
        hears_master: returns whether the master has sent something within this many seconds.
        delay, timers, halves: the scheduled messages, timer messages and half messages of this
            broker; no timer messages with ``timerWheelEnable=false``.
        popped: returns what its log says of popped messages.
    """

    def __init__(
        self,
        core: Core,
        registration: Registration,
        *,
        hears_master: Callable[[float], bool],
        delay: ScheduledDelivery,
        timers: TimerDelivery | None,
        halves: HalfQueue,
        popped: Callable[[], PoppedMessages],
    ) -> None:
        self._role = core.role
        self._client = core.client
        self._settings = core.settings
        self._registration = registration
        self._hears_master = hears_master
        self._delay = delay
        self._timers = timers
        self._halves = halves
        self._popped = popped
        self._tasks = Supervisor("acting-master")
        self._changing = asyncio.Lock()
        self.has_master = False
        """Whether name servers have a master. One that returns takes tables back before it
        registers: nothing is copied from it until then.
        """
        self._waits_until_s = 0.0
        """Until when this slave waits for a master that has announced itself."""
        self._is_notified = False
        """Whether a check follows because of a notification."""
        self._requested = self._known = 0
        """The number of the last request for the members, and of the last whose response counts."""
        self._is_stopped = False
        self._ended = asyncio.Event()
        self._sending: list[asyncio.Task[None]] = []
        """Send half messages, and popped messages."""
        self.is_acting = False
        """Whether this slave acts as the master now."""
        self._failures = FailureLog(
            log,
            fails="cannot find out whether the master is there, retrying",
            works="it is known again whether the master is there",
            name="from",
        )

    async def check(self) -> None:
        """Request the brokers of this name, and begin or end to act as the master."""
        if not self._role.is_slave:
            return
        self._is_notified = False
        self._requested += 1
        number = self._requested
        try:
            members = await self._members()
        except CometError as problem:  # it goes on as it is
            self._failures.failed(_NAME_SERVERS, problem)
            return
        self._failures.succeeded(_NAME_SERVERS)
        async with self._changing:
            if number < self._known or self._is_stopped:
                return
            self._known = number
            had_master, self.has_master = self.has_master, MASTER_ID in members
            if self.has_master and not had_master:
                self._registration.hurry()  # the response has the addresses of the master
            if not self._acts(members):
                await self._end("the master is there, or another slave acts as the master")
            elif not self.is_acting:
                await self._begin()

    async def _members(self) -> dict[int, str]:
        settings = self._settings()
        header = GetBrokerMemberGroupRequest(
            cluster_name=settings.broker_cluster_name, broker_name=settings.broker_name
        )
        return await broker_set_addresses(self._client, self._registration.known, header)

    def _acts(self, members: dict[int, str]) -> bool:
        silence_s = 2 * self._settings().ha_send_heartbeat_interval_ms / 1000
        return (
            min(members, default=MASTER_ID) == self._role.broker_id
            and not self._hears_master(silence_s)
            and asyncio.get_running_loop().time() >= self._waits_until_s
        )

    async def _begin(self) -> None:
        settings = self._settings()
        if not settings.enable_remote_escape:
            self.is_acting = True
            log.info("acting as the master, scheduled messages and transactions wait")
            return
        from cometmq.broker.acting_master.other_brokers import OtherBrokers

        log.info("acting as the master, scheduled messages and transactions go to other brokers")
        others = OtherBrokers(
            self._client,
            lambda: self._registration.known,
            broker_name=settings.broker_name,
            group=f"InnerProducerGroup_{settings.broker_name}_{self._role.broker_id}",
        )
        await self._delay.take_over(others.send_scheduled)
        if self._timers is not None:
            self._timers.start(others.send_scheduled)
        self.is_acting = True
        self._ended.clear()
        self._sending = [
            self._tasks.spawn(self._send_halves(others), "send-half-messages"),
            self._tasks.spawn(self._send_popped(others), "send-popped-messages"),
        ]

    async def _send_halves(self, others: OtherBrokers) -> None:
        from cometmq.broker.acting_master.half_messages import send_undecided

        while await self._still_acts(self._settings().transaction_check_interval_ms / 1000):
            await send_undecided(self._halves, others.send_half, self._ended.is_set)

    async def _send_popped(self, others: OtherBrokers) -> None:
        popped = self._popped()
        while await self._still_acts(POPPED_S):
            await popped.send_due(others, self._ended.is_set)

    async def _still_acts(self, pause_s: float) -> bool:
        """Wait; return whether this broker still acts as the master then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._ended.wait()
        return not self._ended.is_set()

    async def _end(self, reason: str) -> None:
        """End to act as the master; return when what is being sent is sent."""
        if not self.is_acting:
            return
        self.is_acting = False
        log.info("no longer acting as the master: %s", reason)
        self._ended.set()
        await self._delay.finish()
        if self._timers is not None:
            await self._timers.finish()
        if self._sending:
            await asyncio.wait(self._sending)
            self._sending = []
            self._halves.unload()

    async def stop(self) -> None:
        """End for good; return when what is being sent is sent."""
        self._is_stopped = True
        async with self._changing:
            await self._end("the broker stops")
        await self._tasks.cancel()

    # --- requests -------------------------------------------------------------------------------

    def smallest_id_changed(self, request: Request) -> Response:
        """NOTIFY_MIN_BROKER_ID_CHANGE (905): check now; its content is not used."""
        if not self._is_notified and self._role.is_slave:
            self._is_notified = True
            self._tasks.spawn(self.check(), "check-master")
        return Response()

    async def announced(self, request: Request) -> Response:
        """EXCHANGE_BROKER_HA_INFO (906) to a slave: its master is about to be there again."""
        header = request.header(ExchangeBrokerHaInfoRequest)
        if header.master_ha_address is None:
            return Response()
        master = header.master_address or ""
        if self.has_master and master != self._role.master_address:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"met the master {master[:80]!r}, expected {self._role.master_address}, which the"
                " name servers still have",
            )
        for address in (header.master_ha_address, master):
            if not ADDRESS.fullmatch(address):
                raise ResponseError(
                    ResponseCode.SYSTEM_ERROR,
                    f"met the address {address[:80]!r} of a master, expected host:port",
                )
        async with self._changing:
            self._waits_until_s = asyncio.get_running_loop().time() + RETURN_S
            await self._end("the master announced itself")
        self._role.follow(master, header.master_ha_address)
        return Response()
