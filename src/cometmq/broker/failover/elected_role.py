"""Keeps the role of this broker as the controller decides it.

    start       a slave without a master, which no name server knows: it refuses sends
    id          given once by the controller, kept in the store
    register    sends the address to the controller; then heartbeats begin
    elect       requests an election if there is no master
    look        requests master, epoch and in-sync set: at intervals, and when notified

An epoch is the number of one election. A decision with a larger one replaces the role; one with a
smaller epoch is out of date. A master whose controllers do not respond goes on: there is no lease.
It acknowledges nothing that another master could lack as long as all of the in-sync set must have a
message, because the set changes only with the controller's consent. A process that stood still for
longer than its heartbeats last, or whose machine was suspended, asks the controller before it
acknowledges anything.

A master that was killed may find at its start that the controller has not noticed. It does not
continue its epoch: a request of the earlier process for an in-sync set may reach the controller at
any time, and after a power cut slaves may have bytes that its log lacks. It reports the loss to the
controller, and waits for a newer epoch. So does a broker whose store fails, because it stores
nothing until a restart; it sends no heartbeats any more.

A broker acknowledges nothing while its controllers

    know less than it           a smaller master epoch or in-sync epoch: etcd was restored. In the
                                same master epoch, the master renews the in-sync set
    have another broker set     of the same name: etcd was emptied
    name another process        with its id: the store was copied

What it requests next is a state, see `elected_role_states`.

Source: ReplicasManager, RocketMQ 5.3, which acts on the content of a notification, begins an old
epoch anew, and learns only from name servers where a master sends its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.broker.failover.controller_client import (
    ControllerClient,
    ControllerUnavailableError,
)
from cometmq.broker.failover.elected_role_states import TABLE, Action, Event, State
from cometmq.broker.failover.epochs.epoch_file import NO_EPOCH, Epoch, EpochFile
from cometmq.broker.failover.epochs.in_sync import BrokerIds, InSyncSet
from cometmq.broker.failover.epochs.replication import EpochError, EpochReplication
from cometmq.broker.failover.identity import (
    Applied,
    IdentityFiles,
    StoreIdentity,
    StoreIdentityFile,
)
from cometmq.broker.failover.topic_gap import FILE_NAME, TopicGap
from cometmq.broker.replication.greeting import SlaveNames
from cometmq.broker.role import MASTER_ID, SLAVE, SYNC_MASTER
from cometmq.model.errors import CometError, StoreError
from cometmq.protocol.bodies.controller import ElectMasterResponseBody, SyncStateSet
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.broker_admin import (
    ExchangeBrokerHaInfoRequest,
    ExchangeBrokerHaInfoResponse,
)
from cometmq.protocol.headers.controller import (
    ControllerAlterSyncStateSetRequest,
    ControllerApplyBrokerIdRequest,
    ControllerElectMasterRequest,
    ControllerElectMasterResponse,
    ControllerGetNextBrokerIdRequest,
    ControllerGetNextBrokerIdResponse,
    ControllerGetReplicaInfoRequest,
    ControllerGetReplicaInfoResponse,
    ControllerRegisterBrokerRequest,
    ControllerRegisterBrokerResponse,
)
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest
from cometmq.remoting import RemotingClient, Supervisor, check
from cometmq.store import StoreSettings
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.broker.core import Core
    from cometmq.broker.durability.group_commit import GroupCommit

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Pause after a failure."""
POLL_INTERVAL_MIN_S: Final = 0.05
"""Least time between two requests for the master's id."""
IDS_MAX: Final = 5
"""How often this broker applies for an id before it pauses, because others were given those."""
NEVER_S: Final = float("inf")
HA_ADDRESS_TIMEOUT_S: Final = 3.0
"""Timeout of the request for the address at which the master sends its log."""
HA_ADDRESS_RETRY_S: Final = 0.05
"""First pause after that request; each later one is twice as long, up to `RETRY_S`."""
REPORT_LOSS_INTERVAL_S: Final = 15.0
"""Interval at which a loss that the controller has not noticed is reported to it."""
LOST_HEARTBEAT_TIMEOUT_MS: Final = 1_000
"""The time-out in the heartbeat that reports a loss."""


_REGISTER_AGAIN: Final = (
    "their etcd was emptied, or controllerAddr names controllers of another cluster: set it to"
    ' those of before, or follow the how-to page about failover, "If etcd\'s data is lost"'
)


_SET_REFUSED: Final = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
_REFUSALS: Final = frozenset(
    {
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        _SET_REFUSED,
    }
)
"""Responses after which a requested in-sync set certainly never takes effect."""


class Decision(NamedTuple):
    """The decision of a controller about the brokers of this name."""

    master_id: int | None
    """None if there is no master."""
    master_address: str
    epoch: int
    """The master epoch; `NO_EPOCH` if it is not named, because no master is alive."""
    in_sync: BrokerIds
    """The in-sync set."""
    in_sync_epoch: int
    """The epoch of that set."""
    master_incarnation: str = ""
    """The process that was elected; empty if the controller does not say."""

    @property
    def epochs(self) -> tuple[int, int]:
        """The master epoch and that of the in-sync set."""
        return self.epoch, self.in_sync_epoch


class UndecidedError(CometError):
    """The controller has decided nothing that this broker can follow."""


class ElectedRole:
    """The role of one broker.

    Args:
        core: of the broker; its role changes when a controller decides.
        controllers: sends requests to the controllers.
        identity: the id of this broker.
        names: of the store, its set and this process.
        replication: of the log; it leads and follows with the role.
        epochs: the epochs of the log.
        gap: creates the topics that were not copied before this broker is elected, and puts its
            epoch into their version.

    Raises:
        ConfigError: the store belongs to a broker of another name or cluster.
        StoreError: the file with the id cannot be read.
    """

    def __init__(
        self,
        core: Core,
        controllers: ControllerClient,
        identity: IdentityFiles,
        names: StoreIdentityFile,
        replication: EpochReplication,
        epochs: EpochFile,
        gap: TopicGap,
    ) -> None:
        self._role = core.role
        self._controllers = controllers
        self._identity = identity
        self._names = names
        self.replication = replication
        """The replication of the log."""
        self._epochs = epochs
        self._gap = gap
        self._client = core.client
        self._settings = core.settings
        self._store = core.store
        self._clock = core.clock
        self._tasks = Supervisor("elected-role")
        self._wake = asyncio.Event()
        self._address = ""
        self._id = identity.broker_id()
        self._state = TABLE.first
        self._epoch = NO_EPOCH
        """The epoch of the role; `NO_EPOCH` before the first decision."""
        self._known = (NO_EPOCH, 0)
        """The newest decision: its master epoch, and the epoch of its in-sync set."""
        self._in_sync: BrokerIds = frozenset()
        """The in-sync set of the newest decision."""
        self._stopped_cleanly = True
        """Whether the process before stopped cleanly, as this one has said."""
        self._ha_address_lookup: asyncio.Task[None] | None = None
        self._failures = FailureLog(
            log,
            fails="no decision of the controllers, retrying",
            works="the controllers decide again",
            name="broker",
        )
        self._alter_failures = FailureLog(
            log,
            fails="cannot change the in-sync set, retrying",
            works="the in-sync set changes again",
            name="broker",
        )
        self.decided = asyncio.Event()
        """Set once the role is decided."""
        self._ran_s = NEVER_S
        """When heartbeats were last sent, or would have been, in seconds since the boot."""
        self._stood_still_s = NEVER_S
        """When heartbeats were found to be late; `NEVER_S` if the controllers were asked since."""
        self._loss_reported_s = 0.0
        """When this broker last reported itself as lost."""
        core.role.on_master(self._follow)
        replication.acknowledgements.is_doubtful = self._is_doubtful
        replication.acknowledgements.is_cut_off = self._is_cut_off
        replication.acknowledgements.is_unheard = lambda: not self._controllers.is_heard

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs of the log, the oldest first."""
        return self._epochs.epochs

    @property
    def is_in_sync(self) -> bool:
        """Whether this broker is in the in-sync set of the newest decision."""
        return self._id in self._in_sync

    @property
    def log_end(self) -> int:
        """The log offset at which the log ends."""
        return self._store.written_to

    def start(self, address: str) -> None:
        """Register with the controllers, and take the role that they decide, now and later.

        Args:
            address: ``host:port`` at which other servers reach this broker.
        """
        self._address = address
        self._tasks.spawn(self._run(), "decisions")
        self._tasks.spawn(self._send_heartbeats(), "heartbeats")

    async def stop(self) -> None:
        """Leave the controllers, which then elect another master if this broker was it."""
        self._happened(Event.STOP)
        await self._tasks.cancel()
        await self._gap.close()
        await self._controllers.close()

    def _happened(self, event: Event) -> Action | None:
        """Take the next state, and return what is to be done."""
        row = TABLE.row(self._state, event)
        self._state = row.after
        return row.action

    def notified(self) -> None:
        """Request the decision soon: the master may be another one."""
        self._wake.set()

    # --- decisions ------------------------------------------------------------------------------

    async def _run(self) -> None:
        name = self._settings().broker_name
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            began_s = loop.time()
            try:
                await self._follow_decision()
            except Exception as problem:  # whatever it is, the next decision must not be missed
                self._failures.failed(name, problem)
                pause_s = RETRY_S
            else:
                self._failures.succeeded(name)
                self.replication.acknowledgements.refresh()
                pause_s = self._settings().sync_broker_metadata_period_ms / 1000
                if began_s >= self._stood_still_s:  # the controllers have responded since
                    self._stood_still_s = NEVER_S
                    self.replication.acknowledgements.reported()
            await asyncio.sleep(POLL_INTERVAL_MIN_S)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _follow_decision(self) -> None:
        """Request the decision, and follow it.

        Raises:
            CometError: there is none, or it cannot be followed; try again.
        """
        if self._names.identity is None:
            has_id = self._id is not None or self._identity.applied() is not None
            process = self._names.begin(
                has_id=has_id,
                stopped_cleanly=self._store.was_closed,
                is_new_store=self._store.was_missing,
            )
            self._stopped_cleanly = process.stopped_cleanly
        self._note_failure()
        action = self._happened(Event.ROUND)
        if action is Action.STEP_DOWN:
            await self._step_down(self._store.failure or "")
            return
        # What is known before a request is in etcd: a response with less shows that etcd was
        # restored.
        known = max(self._known, (max(self._epoch, self._epochs.last), 0))
        registers = action is Action.REGISTER
        decision = await (self._register() if registers else self._request_decision())
        if decision.master_id is None:
            if decision.epoch != NO_EPOCH:
                await self._check_epochs(decision, known)
            if decision.epoch > max(self._epoch, 0):
                self._be_slave(decision)
            if not self._role.is_slave:  # this process may not be the one that they have elected
                self._fence("the controllers name no living master")
            decision = await self._elect()
        await self._check_epochs(decision, known)
        self._check_process(decision)
        self._known = max(self._known, decision.epochs)
        self._in_sync = decision.in_sync
        self.replication.fence(None)
        if decision.master_id == self._id:
            await self._lead(decision)
        elif decision.epoch > self._epoch or self._role.master_address != decision.master_address:
            self._be_slave(decision)
        self.decided.set()

    # --- decisions that are not followed ----------------------------------------------------------

    def _fence(self, reason: str) -> UndecidedError:
        """Acknowledge nothing until a decision can be followed."""
        self.replication.fence(f"this broker is fenced: {reason}")
        return UndecidedError(reason)

    async def _check_epochs(self, decision: Decision, known: tuple[int, int]) -> None:
        """Acknowledge nothing if the controllers know less than this broker.

        In the epoch of this master, the in-sync set gets a larger number than the largest known.

        Raises:
            CometError: they know less.
        """
        if decision.epochs >= known:
            return
        if decision.epoch < known[0]:
            raise self._fence(
                f"the controllers are in epoch {decision.epoch}, expected {known[0]} or more, which"
                f" this broker knows: {_REGISTER_AGAIN}"
            )
        problem = self._fence(
            f"the controllers have the in-sync set {decision.in_sync_epoch} of epoch"
            f" {decision.epoch}, expected {known[1]} or more, which this broker knows: their etcd"
            " was restored from an older backup; the master of this epoch renews the set"
        )
        in_sync = self.replication.in_sync
        if in_sync is None or decision.master_id != self._id or decision.epoch != self._epoch:
            raise problem
        log.warning("%s", problem)
        members = self.replication.connected_members()
        changed = await self._request_set(in_sync, decision.in_sync_epoch, members, renews=True)
        if self.replication.in_sync is in_sync:
            self.replication.adopt(frozenset(changed.sync_state_set), changed.sync_state_set_epoch)
        self.notified()
        raise UndecidedError(f"the in-sync set is renewed: {sorted(members)}")

    def _check_process(self, decision: Decision) -> None:
        """Refuse a decision that names another process with the id of this broker.

        Raises:
            UndecidedError: it does; this broker is the slave of no master then.
        """
        if decision.master_id != self._id:
            return
        own = self._process.incarnation
        if decision.master_address == self._address and decision.master_incarnation in ("", own):
            return
        self._happened(Event.MUST_REGISTER)
        self._stop_following()
        raise self._fence(
            f"the controllers name another process with the id {self._id} of this broker: met"
            f" {decision.master_address} with the incarnation"
            f" {decision.master_incarnation or 'unknown'}, expected {self._address} with {own}; if"
            " its store is a copy, stop one of them"
        )

    def _check_set(self, set_id: str | None) -> None:
        """Refuse controllers that have another broker set.

        Raises:
            UndecidedError: they have.
        """
        own = self._process.set_id
        if set_id and own and set_id != own:
            raise self._fence(
                f"the controllers have another broker set of this name: met set {set_id}, expected"
                f" {own}, to which this store belongs: {_REGISTER_AGAIN}"
            )

    def slave_names(self) -> SlaveNames:
        """Return what this broker says of itself to the master whose log it copies."""
        process = self._process
        return SlaveNames(self._id or 0, process.set_id, process.store_id, process.incarnation)

    @property
    def _process(self) -> StoreIdentity:
        """The names of this process; it has them before its first request."""
        process = self._names.identity
        assert process is not None
        return process

    def _stop_following(self) -> None:
        """Be the slave of no master."""
        self._end_lookup()
        self._role.follow_elected("")
        self._stop_being_master()
        self.replication.stop()
        self._epoch = NO_EPOCH

    async def _lead(self, decision: Decision) -> None:
        """Be the master.

        Raises:
            CometError: this broker cannot be it, or not yet.
        """
        assert self._id is not None
        if decision.epoch == self._epoch:
            self.replication.adopt(decision.in_sync, decision.in_sync_epoch)
            self._gap.note_lead()
            return
        self._end_lookup()
        self._role.follow_elected("")
        try:
            await self.replication.lead(
                self._id, decision.epoch, decision.in_sync, decision.in_sync_epoch
            )
            await self._gap.begin_epoch(decision.epoch, fills=self._role.is_slave)
        except StoreError as problem:
            self._stop_being_master()
            self.replication.stop()
            if isinstance(problem, EpochError):
                await self._wait_for_newer_epoch(decision.epoch, problem)
            raise
        if self.replication.in_sync is None:  # its in-sync set could not be renewed meanwhile
            raise UndecidedError(f"this broker has left epoch {decision.epoch} before it began")
        self._epoch = decision.epoch
        log.info("this broker is the master controller_id=%d epoch=%d", self._id, decision.epoch)
        self._role.change(SYNC_MASTER, MASTER_ID)

    def _note_failure(self) -> None:
        if self._store.failure is not None:
            self._happened(Event.STORE_FAILED)

    async def _step_down(self, failure: str) -> None:
        """Let the controllers elect another master: the store takes nothing until a restart.

        Raises:
            CometError: the controllers do not respond; try again.
        """
        if self._id is None:
            raise UndecidedError(f"no id is requested, the store has failed: {failure}")
        decision = await self._request_decision()
        is_chosen = decision.master_id == self._id
        if decision.epoch > self._epoch and not is_chosen:
            self._be_slave(decision)
        if (is_chosen or self._state is State.FAILED) and await self._report_loss():
            log.warning("cannot be a master until a restart, the store has failed: %s", failure)
        if is_chosen:  # nothing notifies a broker that is lost
            await asyncio.sleep(RETRY_S)
            self.notified()

    async def _report_loss(self) -> bool:
        """Report this broker as lost, so that the controllers elect another master.

        Returns:
            False if it did so less than `REPORT_LOSS_INTERVAL_S` ago.

        Raises:
            CometError: the controllers do not respond, or refuse.
        """
        now_s = asyncio.get_running_loop().time()
        has_reported = self._state in (State.LOST, State.FAILED_LOST)
        if has_reported and now_s - self._loss_reported_s < REPORT_LOSS_INTERVAL_S:
            return False
        await self._controllers.report_loss(
            msgspec.structs.replace(
                self._heartbeat(), heartbeat_timeout_mills=LOST_HEARTBEAT_TIMEOUT_MS
            )
        )
        self._loss_reported_s = now_s
        self._happened(Event.HAS_REPORTED_LOSS)
        return True

    async def _wait_for_newer_epoch(self, epoch: int, problem: EpochError) -> None:
        """Report the loss until the controllers have a newer epoch, or no master."""
        log.warning("cannot be the master of epoch %d, waiting for a newer one: %s", epoch, problem)
        self._happened(Event.MUST_REGISTER)
        while True:
            decision = await self._request_decision()
            if decision.epoch != epoch or decision.master_id is None:
                break
            await self._report_loss()
            await asyncio.sleep(RETRY_S)
        self.notified()

    def _leave_epoch(self) -> None:
        """Stop being the master, so that the next decision of this epoch waits for a newer one.

        A controller of RocketMQ renews no in-sync set. Until a slave is back, this broker could
        confirm nothing.
        """
        log.warning("the controllers do not renew the in-sync set, leaving epoch %d", self._epoch)
        self._stop_following()

    def _be_slave(self, decision: Decision) -> None:
        """Be a slave of another broker, or of none as long as there is no master."""
        assert self._id is not None
        self._epoch = self._gap.epoch = decision.epoch
        log.info(
            "this broker is a slave controller_id=%d master=%s epoch=%d",
            *(self._id, decision.master_address or "none", decision.epoch),
        )
        self._stop_being_master()
        self._role.follow_elected(decision.master_address)
        self._follow()
        self._end_lookup()
        if decision.master_address:
            self._ha_address_lookup = self._tasks.spawn(
                self._look_up_ha_address(decision.master_address), "look-up-ha-address"
            )

    def _stop_being_master(self) -> None:
        """Take the role of a slave; sends that are staged are appended, and wait, before."""
        assert self._id is not None
        self._store.appender.finish_deferred()
        if not self._role.is_slave:
            self._gap.ended_lead()
        self._role.change(SLAVE, self._id)

    def _follow(self) -> None:
        """Copy the log of the master; the address may have come from a name server."""
        if not self._role.is_slave or self._id is None:
            return
        if self._role.master_address:
            self.replication.follow(self._id, self._role.master_ha_address)
        else:
            self.replication.stop()

    # --- where the master sends its log ---------------------------------------------------------

    def _end_lookup(self) -> None:
        if self._ha_address_lookup is not None:
            self._ha_address_lookup.cancel()
            self._ha_address_lookup = None

    async def _look_up_ha_address(self, master: str) -> None:
        """Request from the master the address at which it sends its log, until it has one.

        A broker of RocketMQ learns that from name servers only, up to 30 seconds later. It does
        not respond with an address before it is the master.
        """
        pause_s = HA_ADDRESS_RETRY_S
        while self._role.master_address == master:
            try:
                response = check(
                    await self._client.call(
                        master,
                        RequestCode.EXCHANGE_BROKER_HA_INFO,
                        ExchangeBrokerHaInfoRequest(),
                        timeout=HA_ADDRESS_TIMEOUT_S,
                    )
                )
                found = response.header(ExchangeBrokerHaInfoResponse)
                if found.master_ha_address:
                    self._role.follow(master, found.master_ha_address)
                    self._follow()  # a name server may have named the address before
                    return
            except CometError as problem:
                log.debug("the master does not say where it sends its log: %s", problem)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_S)

    # --- requests -------------------------------------------------------------------------------

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        settings = self._settings()
        log_end = self.log_end
        return BrokerHeartbeatRequest(
            cluster_name=settings.broker_cluster_name,
            broker_addr=self._address,
            broker_name=settings.broker_name,
            broker_id=self._id,
            epoch=self._epochs.number_at(log_end),
            max_offset=log_end,
            confirm_offset=self._store.confirmed_to,
            heartbeat_timeout_mills=settings.controller_heartbeat_timeout_ms,
            election_priority=settings.broker_election_priority,
            set_id=self._process.set_id or None,
            incarnation=self._process.incarnation,
            known_master_epoch=max(self._known[0], 0),
            known_sync_state_set_epoch=self._known[1],
            # Not what this broker may lose with the power.
            confirmed_to=self._store.readable_to if self._store.confirms else None,
        )

    async def _send_heartbeats(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._is_late():
                stood_s = self._clock.since_boot() - self._ran_s
                log.warning("stood still for %.1f s, asking the controllers", stood_s)
                self._stood_still_s = loop.time()
                self.notified()
            self._ran_s = self._clock.since_boot()
            self._note_failure()
            action = self._happened(Event.HEARTBEAT)
            if action is Action.BEGIN_ROUND:
                self.notified()
            elif action is Action.SEND:
                self._controllers.heartbeat_all(self._heartbeat())
            await asyncio.sleep(self._settings().broker_heartbeat_interval_ms / 1000)

    def _is_late(self) -> bool:
        """Return whether the controllers may have elected because they missed heartbeats."""
        limit_s = self._settings().controller_heartbeat_timeout_ms / 1000
        return self._clock.since_boot() - self._ran_s > limit_s

    def _is_doubtful(self) -> bool:
        return self._stood_still_s != NEVER_S or self._is_late()

    def _is_cut_off(self) -> bool:
        """Return whether the controllers may have elected because they missed heartbeats."""
        return self._controllers.silent_s > self._settings().controller_heartbeat_timeout_ms / 1000

    async def _register(self) -> Decision:
        """Send the address of this broker to the controller; heartbeats begin.

        Raises:
            CometError: the controllers do not respond, or refuse.
        """
        process = self._process
        if self._id is None:
            self._id = await self._obtain_id()
        settings = self._settings()
        response = await self._controllers.call(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            ControllerRegisterBrokerRequest(
                cluster_name=settings.broker_cluster_name,
                broker_name=settings.broker_name,
                broker_id=self._id,
                broker_address=self._address,
                invoke_time=self._clock.now_ms(),
                set_id=process.set_id or None,
                store_id=process.store_id,
                incarnation=process.incarnation,
                earlier_incarnations=";".join(process.earlier),
                stopped_cleanly=self._stopped_cleanly,
            ),
        )
        found = response.header(ControllerRegisterBrokerResponse)
        self._check_set(found.set_id)
        if response.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            raise self._fence(
                f"the controllers do not know the id {self._id} of this broker:"
                f" {response.remark}; {_REGISTER_AGAIN}"
            )
        if response.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            raise self._fence(f"the controllers refuse the id {self._id}: {response.remark}")
        check(response)
        self.replication.verifies = bool(found.set_id)
        self._names.registered(found.set_id or "")
        self.replication.set_id = self._process.set_id
        await self._controllers.heartbeat(self._heartbeat())  # only living brokers are elected
        self._happened(Event.HAS_REGISTERED)
        return _decision(found, SyncStateSet.decode(response.body) if response.body else None)

    async def _obtain_id(self) -> int:
        """Return the id that the controller gives to this broker, now or before a crash.

        Raises:
            CometError: the controllers do not respond, or others were given each id.
        """
        settings = self._settings()
        cluster, name = settings.broker_cluster_name, settings.broker_name
        for _ in range(IDS_MAX):
            applied = self._identity.applied()
            if applied is None:
                response = check(
                    await self._controllers.call(
                        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
                        ControllerGetNextBrokerIdRequest(cluster_name=cluster, broker_name=name),
                    )
                )
                next_id = response.header(ControllerGetNextBrokerIdResponse).next_broker_id
                if next_id is None:
                    raise UndecidedError("the controller responded without nextBrokerId")
                applied = Applied(next_id, f"{self._address};{self._clock.now_ms()}")
                self._identity.save_application(applied)
            response = await self._controllers.call(
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                ControllerApplyBrokerIdRequest(
                    cluster_name=cluster,
                    broker_name=name,
                    applied_broker_id=applied.broker_id,
                    register_check_code=applied.check_code,
                    store_id=self._process.store_id,
                ),
            )
            if response.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                self._identity.remove_application()
                continue
            check(response)
            self._identity.save_id(applied.broker_id)
            return applied.broker_id
        raise UndecidedError(f"other brokers were given {IDS_MAX} ids in a row")

    async def _request_decision(self) -> Decision:
        """Return the decision as the controller knows it.

        Raises:
            CometError: the controllers do not respond, or do not know this broker.
        """
        response = await self._controllers.call(
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            ControllerGetReplicaInfoRequest(
                broker_name=self._settings().broker_name,
                broker_id=self._id,
                set_id=self._process.set_id or None,
                incarnation=self._process.incarnation,
            ),
        )
        if response.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            self._happened(Event.MUST_REGISTER)
        found = response.header(ControllerGetReplicaInfoResponse)
        self._check_set(found.set_id)
        check(response)
        return _decision(found, SyncStateSet.decode(response.body))

    async def _elect(self) -> Decision:
        """Request an election.

        Raises:
            CometError: no broker can be elected, or the controllers do not respond.
        """
        settings = self._settings()
        assert self._id is not None
        if settings.async_learner:  # the first broker that asks would be elected
            raise UndecidedError("there is no master, and a broker with asyncLearner=true is none")
        response = await self._controllers.call(
            RequestCode.CONTROLLER_ELECT_MASTER,
            ControllerElectMasterRequest(
                cluster_name=settings.broker_cluster_name,
                broker_name=settings.broker_name,
                broker_id=self._id,
                invoke_time=self._clock.now_ms(),
                set_id=self._process.set_id or None,
                incarnation=self._process.incarnation,
            ),
        )
        if response.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            self._happened(Event.MUST_REGISTER)
        self._check_set(response.header(ControllerElectMasterResponse).set_id)
        if response.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            check(response)
        found = response.header(ControllerElectMasterResponse)
        members = ElectMasterResponseBody.decode(response.body).sync_state_set
        in_sync = SyncStateSet(
            sync_state_set=members, sync_state_set_epoch=found.sync_state_set_epoch or 0
        )
        return _decision(found, in_sync)

    # --- the in-sync set ------------------------------------------------------------------------

    def request_in_sync(self, members: BrokerIds) -> None:
        """Request another in-sync set from the controller, in the background.

        A broker that has stopped requests none: it has left the controllers, then its slaves.
        """
        in_sync = self.replication.in_sync
        assert in_sync is not None
        if self._happened(Event.SET_CHANGES) is Action.CHANGE_SET:
            self._tasks.spawn(
                self._alter(in_sync, in_sync.in_sync_epoch, members), "alter-in-sync-set"
            )

    def _set_request(
        self,
        in_sync: InSyncSet,
        in_sync_epoch: int,
        members: BrokerIds,
        compared: Mapping[int, str],
        *,
        renews: bool,
    ) -> tuple[ControllerAlterSyncStateSetRequest, bytes]:
        """Return the request for an in-sync set."""
        wanted = SyncStateSet(sync_state_set=sorted(members), sync_state_set_epoch=in_sync_epoch)
        header = ControllerAlterSyncStateSetRequest(
            broker_name=self._settings().broker_name,
            master_broker_id=in_sync.own_id,
            master_epoch=self._epoch,
            invoke_time=self._clock.now_ms(),
            renew_sync_state_set=True if renews else None,
            known_sync_state_set_epoch=in_sync.in_sync_epoch,
            set_id=self._process.set_id or None,
            incarnation=self._process.incarnation,
            member_incarnations="".join(f"{id_}:{one};" for id_, one in compared.items()) or None,
        )
        return header, wanted.encode()

    async def _request_set(
        self, in_sync: InSyncSet, in_sync_epoch: int, members: BrokerIds, *, renews: bool
    ) -> SyncStateSet:
        """Return the in-sync set that the controller has taken.

        Raises:
            CometError: it refuses, or does not respond.
        """
        compared = self.replication.incarnations(members)
        request = self._set_request(in_sync, in_sync_epoch, members, compared, renews=renews)
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        response = check(await self._controllers.call(code, *request))
        self.replication.verified(compared)
        return SyncStateSet.decode(response.body)

    async def _alter(self, in_sync: InSyncSet, in_sync_epoch: int, members: BrokerIds) -> None:
        compared = self.replication.incarnations(members)
        renews = members == in_sync.members
        request = self._set_request(in_sync, in_sync_epoch, members, compared, renews=renews)
        name = self._settings().broker_name
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        try:
            response = await self._controllers.call(code, *request)
        except ControllerUnavailableError as problem:
            self._alter_failures.failed(name, problem)
            if self.replication.in_sync is in_sync:
                if problem.was_sent:
                    self.replication.unanswered(in_sync_epoch)
                    self.notified()  # it may have taken effect
                else:
                    self.replication.refused(in_sync_epoch, was_sent=False)
            return
        if self.replication.in_sync is not in_sync:
            return  # the response to an earlier mastership
        if response.code != ResponseCode.SUCCESS:
            refusal = UndecidedError(
                f"the controller refuses the members {sorted(members)}, code {response.code}:"
                f" {response.remark}"
            )
            self._alter_failures.failed(name, refusal)
            if (
                in_sync.is_stuck(in_sync_epoch)
                and response.code == _SET_REFUSED
                and self._store.confirms
            ):
                self._leave_epoch()
            elif response.code in _REFUSALS:
                self.replication.refused(in_sync_epoch)
            else:
                self.replication.unanswered(in_sync_epoch)
            self.notified()  # it may know a newer set, or another master
            return
        changed = SyncStateSet.decode(response.body)
        self._alter_failures.succeeded(name)
        self.replication.verified(compared)
        self._known = max(self._known, (self._epoch, changed.sync_state_set_epoch))
        self.replication.adopt(frozenset(changed.sync_state_set), changed.sync_state_set_epoch)


def elect_role(
    core: Core, commit: GroupCommit, before_truncation: Callable[[int], object]
) -> tuple[EpochReplication, ElectedRole]:
    """Return the replication of a broker whose role controllers decide, and that role.

    Args:
        core: of the broker.
        commit, before_truncation: as for `EpochReplication`.

    Raises:
        ConfigError: the store belongs to a broker of another name or cluster.
        StoreError: a file with epochs or the id cannot be read.
    """
    store, settings, files = core.store, core.settings, core.files
    stored = core.configuration[StoreSettings]

    def send_request(members: BrokerIds) -> None:
        elected.request_in_sync(members)

    def prepare(log_end: int) -> None:
        before_truncation(log_end)
        gap.truncated(log_end)

    gap = TopicGap(core.topics, store, core.topics.file_beside(FILE_NAME), settings)
    epochs = EpochFile(stored.root, files)
    replication = EpochReplication(
        core.role,
        store,
        settings,
        epochs,
        send_request=send_request,
        commit=commit,
        sync_flush=stored.sync_flush,
        clock=core.clock,
        before_truncation=prepare,
    )
    elected = ElectedRole(
        core,
        _controllers(core.client, settings),
        IdentityFiles(
            stored.root, files, cluster=settings().broker_cluster_name, name=settings().broker_name
        ),
        StoreIdentityFile(stored.root, files),
        replication,
        epochs,
        gap,
    )
    return replication, elected


def _controllers(
    client: RemotingClient, settings: Callable[[], BrokerSettings]
) -> ControllerClient:
    def configured() -> Sequence[str]:
        return settings().controller_addr

    if not settings().fetch_controller_addr_by_dns_lookup:
        return ControllerClient(client, configured)
    from cometmq.broker.failover.controller_addresses import ControllerAddresses

    names = ControllerAddresses(configured)
    return ControllerClient(client, names.known, names)


def _decision(
    found: ControllerRegisterBrokerResponse
    | ControllerElectMasterResponse
    | ControllerGetReplicaInfoResponse,
    in_sync: SyncStateSet | None,
) -> Decision:
    in_sync = in_sync or SyncStateSet()
    has_master = bool(found.master_address) and found.master_broker_id is not None
    return Decision(
        found.master_broker_id if has_master else None,
        found.master_address or "",
        NO_EPOCH if found.master_epoch is None else found.master_epoch,
        frozenset(in_sync.sync_state_set),
        in_sync.sync_state_set_epoch,
        found.master_incarnation or "",
    )
