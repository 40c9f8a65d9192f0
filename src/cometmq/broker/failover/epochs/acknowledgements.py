"""Sends that wait for members of the in-sync set, on a master that a controller elected.

    allAckInSyncStateSet    a send waits for
    true, the default       all members of the in-sync set, also those about to join or leave
    false                   inSyncReplicas - 1 of them beside this broker; RocketMQ's default

After the process stood still, no send is acknowledged before the controllers were asked: they may
have elected another master. With fewer members than ``minInSyncReplicas`` none is, either. RocketMQ
compares that number before it stores a message, and acknowledges it with one copy if the others
leave meanwhile.

A master that is cut off, from the controllers and from a member, acknowledges nothing: another one
may be elected. After the first timeout of a send it refuses sends, so that clients look
for the new master instead of waiting here. RocketMQ's master lets each send wait for the timeout.
So does a master that is fenced: its controllers know less than it, or another set, or another
process with its id.

Source: CommitLog.handleHA and GroupTransferService, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.acknowledgements import Acknowledgements, Outcome
from cometmq.broker.failover.epochs.in_sync import InSyncSet
from cometmq.broker.role import Role
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.store import MessageStore


class EpochAcknowledgements(Acknowledgements):
    """Lets sends wait until members of the in-sync set have them.

    Args:
        role: only a master waits.
        settings: returns the current settings of the broker.
        store: the log, whose confirm offset is what all members of the in-sync set have.
        in_sync: returns the in-sync set; None while this broker does not lead.
    """

    ended_code = int(ResponseCode.SERVICE_NOT_AVAILABLE)
    """Another master is elected, also if this one stops: clients send the message there again."""

    def __init__(
        self,
        role: Role,
        settings: Callable[[], BrokerSettings],
        store: MessageStore,
        in_sync: Callable[[], InSyncSet | None],
    ) -> None:
        super().__init__(role, settings, lambda: ())
        self._store = store
        self._in_sync = in_sync
        self.is_doubtful: Callable[[], bool] = _never
        """Returns whether another master may have been elected: the controllers are asked first."""
        self.is_cut_off: Callable[[], bool] = _never
        """Returns whether the controllers do not respond for so long that they may have elected."""
        self.is_unheard: Callable[[], bool] = _never
        """Returns whether a request to the controllers has failed since their last response."""
        self._stuck_at = -1
        """The confirm offset at the last timeout of a send; -1 if there was none in this epoch."""
        self._few = ResponseError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        self._alone = ResponseError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "this broker reaches neither controllers nor all of the in-sync set, and another master"
            " may be elected",
        )

    def are_needed(self) -> bool:
        """Return whether sends wait for members of the in-sync set.

        Those that this broker stored before it became a slave have waited in vain: the master may
        not have them. RocketMQ responds FLUSH_SLAVE_TIMEOUT, with which a client takes them for
        sent, although the new master erases them.
        """
        settings = self._settings()
        return not self._role.is_sync_master or (
            settings.all_ack_in_sync_state_set
            or settings.in_sync_replicas > 1
            or settings.min_in_sync_replicas > 1
            or self.fenced is not None
            or self.is_doubtful()
        )

    def may_be_replaced(self) -> bool:
        """Return whether another master may have been elected.

        Only what the in-sync set confirms from now on was stored before that.
        """
        return self._in_sync() is not None and (
            self.fenced is not None or self.is_doubtful() or self.is_unheard() or self.is_cut_off()
        )

    def wait(self, log_offset_end: int, on_outcome: Outcome) -> None:
        """Call ``on_outcome`` as a master does, or at once if this broker is none any more."""
        if self._in_sync() is None:
            on_outcome(self.ended_code)
        else:
            super().wait(log_offset_end, on_outcome)

    def fence(self, reason: str | None) -> None:
        """Acknowledge nothing and refuse sends, for a reason; None to go on."""
        if reason != (None if self.fenced is None else self.fenced.remark):
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            self.fenced = None if reason is None else ResponseError(code, reason)
            self.refresh()
            self.reported()

    def reached(self) -> int:
        """Return the log offset up to which sends are acknowledged; -1 for none."""
        in_sync, settings = self._in_sync(), self._settings()
        if in_sync is None or in_sync.least_count < settings.min_in_sync_replicas:
            return -1
        if self.fenced is not None or self.is_doubtful():
            return -1
        if settings.all_ack_in_sync_state_set:
            return self._store.confirmed_to
        return in_sync.offset_at(settings.in_sync_replicas, self._store.written_to)

    def reported(self) -> None:
        """End the waits for what replicas have now, and accept sends again if that is due."""
        super().reported()
        if self.refusal is self._alone:
            self.refresh()

    def refresh(self) -> None:
        """Refuse sends, or accept them again; after changes of the set, and at intervals."""
        refusal = self._reason()
        if refusal is not self.refusal:
            self.refusal = refusal
            self.on_refusal()

    def _reason(self) -> ResponseError | None:
        in_sync, settings = self._in_sync(), self._settings()
        if in_sync is None:
            self._stuck_at = -1
            return None
        if self.fenced is not None:
            return self.fenced
        if in_sync.least_count < settings.min_in_sync_replicas:
            return self._few
        is_stuck = settings.all_ack_in_sync_state_set and self._store.confirmed_to <= self._stuck_at
        return self._alone if is_stuck and self.is_cut_off() else None

    def _note_timeout(self) -> None:
        self._stuck_at = self._store.confirmed_to
        self.refresh()

    def lack_slaves(self, log_offset_end: int) -> bool:
        """Return False: `refusal` says beforehand if there are too few members."""
        return False

    def are_too_few(self, log_offset_end: int) -> bool:
        """Return False: `refusal` says beforehand if there are too few members."""
        return False


def _never() -> bool:
    return False
