"""Replicates the log of a broker whose master a controller elects.

    lead        as the master of an epoch: sends the log, and keeps the in-sync set
    follow      as a slave: truncates the log to the common point, and copies that of the master
    stop        neither

`ElectedRole` decides which of them, and in which epoch, and changes the role. It also requests
other in-sync sets from the controller: this module calls `send_request` when the reports of slaves
call for another one, and gets the outcome by `adopt`, `refused` or `unanswered`.

Source: AutoSwitchHAService, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from cometmq.broker.config import BrokerSettings
from cometmq.broker.failover.epochs.acknowledgements import EpochAcknowledgements
from cometmq.broker.failover.epochs.epoch_file import NO_EPOCH, EpochFile
from cometmq.broker.failover.epochs.in_sync import BrokerIds, InSyncSet
from cometmq.broker.failover.epochs.master import EpochSlaveConnection
from cometmq.broker.failover.epochs.slave import EpochLogCopy
from cometmq.broker.failover.epochs.wire import Greeting
from cometmq.broker.replication.greeting import check_process
from cometmq.broker.replication.master import Master
from cometmq.broker.replication.slave_connection import UNSENT_BYTES_MAX
from cometmq.broker.role import Role
from cometmq.model.errors import ProtocolError, StoreError
from cometmq.store import CONFIRMS_ALL, MessageStore
from cometmq.system.clock import Clock

if TYPE_CHECKING:
    from cometmq.broker.durability.group_commit import GroupCommit

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0
FIRST_CHECK_S: Final = 3.0
ASK_AGAIN_S: Final = 1.0
"""Least time between a request for another in-sync set that failed and the next one."""
JOIN_S: Final = 1.0
"""The longest time that sends wait for a slave that is about to join the in-sync set."""


class EpochError(StoreError):
    """This broker cannot be the master of an epoch; a newer one has to be elected."""


class EpochReplication:
    """Master and slave of one broker; one call of `lead` runs at a time.

    Args:
        role: of this broker; changed by `ElectedRole` only.
        store: the log; it confirms if ``allAckInSyncStateSet`` is set.
        settings: returns the current settings of the broker.
        epochs: the epochs of the log.
        send_request: requests another in-sync set from the controller, in the background: it
            returns at once. `adopt`, `refused` or `unanswered` is called with the outcome.
        commit: syncs the log.
        sync_flush: whether received bytes are on the disk before they are reported.
        clock: gives the time at which something was received.
        before_truncation: called with the new end of the log before that is truncated; what it
            raises prevents that.

    `master` and `copy` are started and closed like those of a broker without a controller; `copy`
    is idle until `follow`.
    """

    def __init__(
        self,
        role: Role,
        store: MessageStore,
        settings: Callable[[], BrokerSettings],
        epochs: EpochFile,
        *,
        send_request: Callable[[BrokerIds], None],
        commit: GroupCommit,
        sync_flush: bool,
        clock: Clock,
        before_truncation: Callable[[int], object],
    ) -> None:
        self._role = role
        self._store = store
        self._settings = settings
        self._epochs = epochs
        self._send_request = send_request
        self._commit = commit
        self.in_sync: InSyncSet | None = None
        """The in-sync set while this broker leads."""
        self.acknowledgements = EpochAcknowledgements(role, settings, store, lambda: self.in_sync)
        self.master = Master(
            role,
            store,
            settings,
            connect=lambda master: EpochSlaveConnection(master, epochs, self),
            acknowledgements=self.acknowledgements,
        )
        self.copy = EpochLogCopy(
            role,
            store,
            settings,
            epochs,
            commit=commit if sync_flush else None,
            clock=clock,
            before_truncation=before_truncation,
        )
        self._begun = NO_EPOCH
        """The epoch that this process leads, or has begun and could not lead yet."""
        self._epoch_start = 0
        self._connections: dict[int, EpochSlaveConnection] = {}
        self._gone: set[int] = set()
        """Slaves that were connected to this master, and are not."""
        self.set_id = ""
        """The broker set; empty if the controller names none."""
        self.master.set_id = lambda: self.set_id
        self.verifies = False
        """Whether the controller keeps which processes of members were compared."""
        self._verified: dict[int, str] = {}
        """The processes of members of which the controller knows that they were compared."""
        self._moved = asyncio.Event()
        """Set when the confirm offset may have moved."""
        self._is_pausing = False
        """Whether a request has failed, so that no other one is made for a while."""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # --- life cycle -------------------------------------------------------------------------------

    async def lead(self, own_id: int, epoch: int, members: BrokerIds, in_sync_epoch: int) -> None:
        """Become the master of an epoch, or go on as the master in a newer one.

        Call it before this broker becomes a master, and before the first send is accepted.
        On return the epoch is on the disk. A call that fails leaves the log without a master.

        Args:
            own_id: the id that the controller gave to this broker.
            epoch: the master epoch.
            members, in_sync_epoch: the in-sync set at the election, and its epoch.

        Raises:
            EpochError: this broker knows a newer epoch; or an earlier process of it has led this
                one. Slaves may have bytes of that process which were lost here with the power, and
                its last request for an in-sync set may reach the controller at any time. Accept no
                sends until the controller elects with a newer epoch.
            StoreError: the disk refused; call it again.
        """
        last = self._epochs.last
        if epoch < last:
            raise EpochError(f"cannot lead epoch {epoch}: the log has epoch {last} already")
        if epoch == last != self._begun:
            raise EpochError(
                f"cannot lead epoch {epoch} again: requests that were sent when it was led before"
                " may still take effect; expected a newer epoch"
            )
        self.copy.follow(own_id, "")
        if self.in_sync is None:
            await self.copy.settle()
        if epoch > last:
            try:
                self._epochs.begin(epoch, self._store.written_to)
            except ValueError as problem:
                raise EpochError(f"cannot lead epoch {epoch}: {problem}") from problem
        self._begun = epoch
        self._epoch_start = self._epochs.epochs[-1].start
        now_s = _now_s()
        if self.in_sync is None:
            self._gone.clear()
            self._verified.clear()
            self.in_sync = InSyncSet(
                own_id, members, in_sync_epoch, confirmed_to=self._store.confirmed_to, now_s=now_s
            )
        else:
            self.in_sync.adopt(members, in_sync_epoch)
        self._set_changed()
        self._request_next()
        self._at("check", FIRST_CHECK_S, self._check)
        log.info(
            "leads epoch=%d log_offset=%d in_sync=%s", epoch, self._epoch_start, sorted(members)
        )

    async def wait_confirmed(self) -> None:
        """Wait until all that the log has now is confirmed, or this broker leads no more.

        A new master reads what the log says of transactions and delayed messages after that.
        """
        log_end = self._store.written_to
        while self.in_sync is not None and self._store.confirmed_to < log_end:
            self._moved.clear()
            await self._moved.wait()

    def follow(self, own_id: int, ha_address: str) -> None:
        """Copy the log of the elected master; return at once.

        Call it after this broker has become a slave. Sends that wait get
        SERVICE_NOT_AVAILABLE at once, and connections to another address end.

        Args:
            own_id: the id that the controller gave to this broker.
            ha_address: ``host:port`` at which that master sends its log; empty while it is not
                known. It must be from the elected broker itself: an address of an older master
                would be obeyed until it knows of the election.
        """
        self._stop_leading()
        self.copy.follow(own_id, ha_address)
        self._at("check", CHECK_S, self._check)

    def stop(self) -> None:
        """Neither lead nor follow; call it after this broker has become a slave."""
        self._stop_leading()
        self.copy.follow(self.copy.own_id, "")

    def _stop_leading(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._is_pausing = False
        if self.in_sync is None:
            return
        self.in_sync = None
        self._begun = NO_EPOCH  # requests for in-sync sets may be under way
        self._moved.set()
        self._store.confirm(0)  # what readers have seen stays
        self.acknowledgements.refresh()
        self.acknowledgements.end_all()
        self._commit.end_all()

    # --- the in-sync set --------------------------------------------------------------------------

    def adopt(self, members: BrokerIds, in_sync_epoch: int) -> None:
        """Take the in-sync set of the controller for this epoch, if it is newer.

        It is the response to a request, or was polled.
        """
        if self.in_sync is not None and self.in_sync.adopt(members, in_sync_epoch):
            log.info(
                "in-sync set changed in_sync=%s in_sync_epoch=%d", sorted(members), in_sync_epoch
            )
            self._set_changed()
            self._request_next()

    def fence(self, reason: str | None) -> None:
        """Acknowledge and confirm nothing, and refuse sends, for a reason; None to go on."""
        was_fenced = self.acknowledgements.fenced is not None
        self.acknowledgements.fence(reason)
        if reason is not None and not was_fenced:
            log.warning("sends are refused, and nothing is acknowledged: %s", reason)
        elif was_fenced and reason is None:
            log.info("this broker is not fenced any more")
        if was_fenced and reason is None and self.in_sync is not None:
            self._set_changed()

    def refused(self, in_sync_epoch: int, *, was_sent: bool = True) -> None:
        """Note that the request of an epoch of the set was refused, or could not be sent."""
        if self.in_sync is not None and self.in_sync.refused(in_sync_epoch, was_sent=was_sent):
            self._pause()

    def unanswered(self, in_sync_epoch: int) -> None:
        """Note that the request of an epoch of the set has no response: it may take effect."""
        if self.in_sync is not None and self.in_sync.unanswered(in_sync_epoch):
            self._pause()

    def _pause(self) -> None:
        """Request nothing for a while."""
        self._is_pausing = True
        self._set_changed()
        self._at("pause", ASK_AGAIN_S, self._end_pause)

    def _end_pause(self) -> None:
        self._is_pausing = False
        self._request_next()

    def _request(self, members: BrokerIds | None, *, renews: bool = False) -> None:
        """Request another in-sync set, unless that must not be now."""
        in_sync = self.in_sync
        assert in_sync is not None
        if members is None or self._is_pausing or not in_sync.request(members, renews=renews):
            return
        self._set_changed()
        self._send_request(members)

    def _request_next(self) -> None:
        """Request a set without slaves that have disconnected, or with one that may join."""
        in_sync = self.in_sync
        if in_sync is None:
            return
        self._leave_out(in_sync)
        for slave_id, connection in list(self._connections.items()):
            self._admit(in_sync, slave_id, connection)
        self._request(in_sync.renewal())
        self._renew_for_processes(in_sync)

    def _renew_for_processes(self, in_sync: InSyncSet) -> None:
        """Renew the set if a member has started again and was not left out meanwhile."""
        compared = self.incarnations(in_sync.members)
        if self.verifies and any(self._verified.get(id_) != one for id_, one in compared.items()):
            self._request(in_sync.members, renews=True)

    def incarnations(self, members: BrokerIds) -> dict[int, str]:
        """Return the processes of members that have reported the log of this master."""
        in_sync, found = self.in_sync, {}
        for id_, connection in self._connections.items():
            greeting = connection.greeting
            if in_sync is None or greeting is None or not greeting.incarnation:
                continue
            if id_ in members and in_sync.has_confirmed(id_, self._epoch_start):
                found[id_] = greeting.incarnation
        return found

    def verified(self, incarnations: Mapping[int, str]) -> None:
        """Note that the controller knows of members that were compared."""
        self._verified.update(incarnations)

    def connected_members(self) -> BrokerIds:
        """Return this broker, and the members of the in-sync set that are connected to it."""
        in_sync = self.in_sync
        assert in_sync is not None
        others = {id_ for id_ in in_sync.members if in_sync.has_confirmed(id_, self._epoch_start)}
        return frozenset({in_sync.own_id, *others})

    def _leave_out(self, in_sync: InSyncSet) -> None:
        """Request a set without slaves that have disconnected, or lack what is confirmed.

        One of the latter has lost bytes with the power; elected, it would lose them everywhere.
        One that compares its last record first is left out as well: it reports that record as
        missing, and its next report makes it a member of the in-sync set again.
        """
        left_out = in_sync.members & (self._gone | in_sync.lacking())
        if left_out:
            self._request(in_sync.members - left_out)

    def _set_changed(self) -> None:
        """Confirm, acknowledge and refuse by the members that there may be now."""
        self._confirm()
        self.acknowledgements.refresh()
        self.acknowledgements.reported()

    def _confirm(self) -> None:
        in_sync = self.in_sync
        assert in_sync is not None
        if self.acknowledgements.fenced is not None:
            return
        confirmed_to = in_sync.written(self._store.written_to)
        self._store.confirm(CONFIRMS_ALL if in_sync.is_alone else confirmed_to)
        self._moved.set()

    # --- slaves -----------------------------------------------------------------------------------

    def greeted(self, connection: EpochSlaveConnection, greeting: Greeting) -> None:
        """Take the connection of a slave, instead of an older one of the same process.

        A slave that connects again may do so before the end of its old connection is met.

        Raises:
            ProtocolError: it names the id of this broker, or that of another process that is
                connected; or this broker does not lead.
        """
        in_sync, slave_id = self.in_sync, greeting.broker_id
        if in_sync is None:
            raise ProtocolError("this broker is not the master yet")
        if slave_id == in_sync.own_id:
            raise ProtocolError(f"it names the broker id {slave_id}, which is that of this broker")
        older = self._connections.get(slave_id)
        if older is not None and (held := older.greeting) is not None:
            check_process(slave_id, greeting.incarnation, held.incarnation, older.peer)
        self._connections[slave_id] = connection
        if older is not None:
            older.close()
            in_sync.disconnected(slave_id)
            self._set_changed()

    def reported(self, connection: EpochSlaveConnection, slave_id: int) -> None:
        """Take the report of a slave."""
        in_sync = self.in_sync
        if in_sync is None or self._connections.get(slave_id) is not connection:
            return
        self._gone.discard(slave_id)
        in_sync.reported(slave_id, connection.acknowledged_to, self._store.written_to, _now_s())
        self._leave_out(in_sync)
        self._admit(in_sync, slave_id, connection)
        greeting = connection.greeting
        incarnation = "" if greeting is None else greeting.incarnation
        if self.verifies and incarnation and self._verified.get(slave_id) != incarnation:
            self._renew_for_processes(in_sync)
        self._confirm()
        self.acknowledgements.reported()

    def _admit(self, in_sync: InSyncSet, slave_id: int, connection: EpochSlaveConnection) -> None:
        """Make a slave a member of the in-sync set as soon as it has all that is confirmed."""
        greeting = connection.greeting
        if slave_id in in_sync.members or greeting is None or greeting.is_learner:
            return
        if self._is_pausing:
            return
        if slave_id != in_sync.joining:
            if not in_sync.join(slave_id, self._store.written_to, UNSENT_BYTES_MAX):
                return
            # Others come first the next time: this one may never become a member.
            self._connections[slave_id] = self._connections.pop(slave_id)
            self._confirm()  # nothing behind the log's end here without that slave
            self._at("join", JOIN_S, self._end_joining)
        self._request(in_sync.with_slave(slave_id, self._epoch_start))

    def _end_joining(self) -> None:
        """Let sends wait no more for a slave that did not become a member of the in-sync set."""
        if self.in_sync is not None and self.in_sync.joining is not None:
            self.in_sync.end_joining()
            self._pause()

    def disconnected(self, connection: EpochSlaveConnection, slave_id: int) -> None:
        """Request a set without a slave whose connection has ended."""
        if self._connections.get(slave_id) is not connection:
            return
        del self._connections[slave_id]
        if self.in_sync is not None:
            self._gone.add(slave_id)
            self.in_sync.disconnected(slave_id)
            self._set_changed()
            self._request_next()

    def is_in_sync(self, slave_id: int) -> bool:
        """Return whether a slave is a member of the in-sync set."""
        return self.in_sync is not None and slave_id in self.in_sync.members

    # --- time -------------------------------------------------------------------------------------

    def _at(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        """Call a function later, instead of an earlier call with the same name."""
        timer = self._timers.get(name)
        if timer is not None:
            timer.cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, call)

    def _check(self) -> None:
        """Remove slaves that were left behind from the set, and epochs of deleted files."""
        self._at("check", CHECK_S, self._check)
        try:
            self._epochs.deleted_before(self._store.min_log_offset)
        except StoreError as problem:
            log.warning("cannot remove the epochs of deleted files: %s", problem)
        if self.in_sync is not None:
            now_s, limit_ms = _now_s(), self._settings().ha_max_time_slave_not_catchup_ms
            self.in_sync.idle(self._store.written_to, now_s)
            self._request(self.in_sync.without_slow(now_s, limit_ms / 1000))
            self.acknowledgements.refresh()  # minInSyncReplicas may have changed


def _now_s() -> float:
    return asyncio.get_running_loop().time()
