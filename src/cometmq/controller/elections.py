"""Elections: on request, when a master is lost, and when a scan finds a set without one.

Source: ControllerManager, RocketMQ 5.3.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from cometmq.controller.broker_set import NO_ID, BrokerSet, Election, Heard, elect
from cometmq.controller.broker_set_table import BrokerSetTable
from cometmq.controller.config import ControllerSettings
from cometmq.controller.etcd import EtcdUnavailableError
from cometmq.controller.live_brokers import LiveBroker, LiveBrokers
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.protocol.bodies.controller import SyncStateSet
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.broker_admin import NotifyBrokerRoleChangedRequest
from cometmq.remoting import RemotingClient, Supervisor

log = logging.getLogger(__name__)

_NOT_REPLACED = "cannot replace a master broker=%s: %s"
NONE_ELECTED = "no_master_elected"
_RESULTS: dict[int, str] = {
    ResponseCode.SUCCESS: "new_master_elected",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "keep_current_master",
}


class Elections:
    """Elects masters and notifies their brokers.

    Args:
        table: the broker sets.
        live: the living brokers.
        client: sends the notifications.
        supervisor: owns the tasks that send them.
        settings: returns the current settings.
        is_active: returns whether this controller is the active one.
    """

    def __init__(
        self,
        table: BrokerSetTable,
        live: LiveBrokers,
        client: RemotingClient,
        supervisor: Supervisor,
        settings: Callable[[], ControllerSettings],
        *,
        is_active: Callable[[], bool],
    ) -> None:
        self._table = table
        self._live = live
        self._client = client
        self._supervisor = supervisor
        self._settings = settings
        self._is_active = is_active
        self.results: Counter[str] = Counter()
        """How often elections ended how since the start, by RocketMQ's names."""
        self.waiting: dict[str, str] = {}
        """Why a broker set has no master, and what that waits for, by its name."""

    async def elect(self, name: str, *, asker: int = NO_ID, designated: bool = False) -> Election:
        """Elect a master of a broker set, and notify its brokers of a new one.

        Raises:
            ResponseError: the set is unknown.
            EtcdUnavailableError: the outcome is unknown.
        """

        all_heard = self._live.heard(name)  # before the set is read, which then knows as much

        def decide(before: BrokerSet | None) -> tuple[BrokerSet, Election]:
            living, heard = {}, Heard()
            if before is not None:
                found = self._live.living(before)
                living = {id_: one.candidate for id_, one in found.items()}
                heard = all_heard.get(before.set_id, heard)
            election = elect(
                before,
                living,
                asker=asker,
                designated=designated,
                unclean=self._settings().elects_unclean,
                heard=heard,
            )
            return election.after, election

        election = await self._table.change(name, decide)
        after = election.after
        self.results[_RESULTS.get(election.code, NONE_ELECTED)] += 1
        self._note_waiting(name, election.waits)
        if election.code == ResponseCode.SUCCESS:
            elected = self._live.living(after).get(after.master_id or 0)
            if elected is not None and elected.candidate.max_offset < elected.candidate.needed_to:
                self._live.lost_confirmed(after, max(elected.candidate.max_offset, 0))
            log.info(
                "master elected broker=%s id=%s epoch=%d", name, after.master_id, after.master_epoch
            )
            if self._settings().notifies_role_changes:
                self._supervisor.spawn(self._notify(after), "notify")
        return election

    def _note_waiting(self, name: str, waits: str) -> None:
        """Log once why no member is elected, until one is, or the reason is another one."""
        if not waits:
            self.waiting.pop(name, None)
        elif waits != self.waiting.get(name):
            self.waiting[name] = waits
            log.error("no master is elected broker=%s: %s", name, waits)

    async def replace(self, lost: Iterable[LiveBroker]) -> None:
        """Elect a master for each set whose master is among the lost brokers.

        If etcd gives no response the next scan elects. A set that cannot be read or changed does
        not stop the others.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """
        for broker in lost:
            log.warning("broker lost broker=%s id=%d", broker.name, broker.id)
            if not self._is_active():
                continue
            try:
                known = await self._table.get(broker.name)
            except EtcdUnavailableError:
                raise
            except CometError as problem:
                log.error(_NOT_REPLACED, broker.name, problem)
                continue
            if known is None or known.master_id != broker.id:
                continue
            if not self._live.is_master_alive(known):
                await self._elect_lost(known)

    async def scan(self) -> None:
        """Elect a master for each set that has no living one while another broker lives.

        A set that cannot be read or changed does not stop the others.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """
        if not self._is_active():
            self.waiting.clear()  # the active controller says it
            return
        all_heard = self._live.all_heard()  # before the sets are read, which then know as much
        sets = await self._table.all()
        for gone in self.waiting.keys() - {known.name for known in sets}:
            del self.waiting[gone]
        for known in sets:
            heard = all_heard.get(known.name, {}).get(known.set_id, Heard())
            is_behind = heard.epochs[0] > known.master_epoch
            if not (known.master_epoch or is_behind) or not self._live.living(known):
                continue
            if is_behind or not self._live.is_master_alive(known):
                await self._elect_lost(known)

    async def _elect_lost(self, known: BrokerSet) -> None:
        try:
            election = await self.elect(known.name)
        except EtcdUnavailableError:
            raise
        except CometError as problem:
            code = problem.code if isinstance(problem, ResponseError) else None
            if code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                log.info("the broker set is gone, no election broker=%s", known.name)
            else:
                log.error(_NOT_REPLACED, known.name, problem)
            return
        if election.after != known and election.after.master_id is None and not election.waits:
            log.error(
                "no master can be elected, all of the in-sync set are lost broker=%s in_sync=%s",
                known.name,
                list(known.in_sync),
            )

    async def _notify(self, after: BrokerSet) -> None:
        header = NotifyBrokerRoleChangedRequest(
            master_address=after.master_address,
            master_broker_id=after.master_id,
            master_epoch=after.master_epoch,
            sync_state_set_epoch=after.in_sync_epoch,
        )
        body = sync_state_set(after).encode()
        for broker in self._live.living(after).values():
            with contextlib.suppress(RemotingError):
                await self._client.oneway(
                    broker.address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, body
                )


def sync_state_set(known: BrokerSet) -> SyncStateSet:
    """Return the in-sync set in the form of the wire."""
    return SyncStateSet(
        sync_state_set=list(known.in_sync), sync_state_set_epoch=known.in_sync_epoch
    )
