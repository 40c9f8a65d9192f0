"""Replicates the log of a broker whose master a controller elects.

    lead        as the master of an epoch: sends the log, and keeps the in-sync set
    follow      as a slave: truncates the log to the common point, and copies that of the master
    neither     after the start: nothing is copied or sent

Which of them, and in which epoch, is decided by the life cycle of the broker, which knows the
controller; so is the role. What a slave reports changes the in-sync set: the life cycle is asked to
request another set from the controller, and says what became of the request.

Source: AutoSwitchHAService, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.broker.config import BrokerSettings
from cometmq.broker.replication.epoch_acknowledgements import EpochAcknowledgements
from cometmq.broker.replication.epoch_master import EpochSlaveConnection
from cometmq.broker.replication.epoch_slave import EpochLogCopy
from cometmq.broker.replication.epochs import NO_EPOCH, EpochFile
from cometmq.broker.replication.in_sync import InSyncSet, Members
from cometmq.broker.replication.master import Master
from cometmq.broker.role import Role
from cometmq.model.errors import StoreError
from cometmq.store import MessageStore
from cometmq.system.clock import Clock

if TYPE_CHECKING:
    from cometmq.broker.sending.group_commit import GroupCommit

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0
FIRST_CHECK_S: Final = 3.0
"""Members of the in-sync set have so long to connect after an election."""
ASK_AGAIN_S: Final = 1.0
"""Least time between a request for another in-sync set that failed and the next one."""


class EpochError(StoreError):
    """This broker cannot be the master of the epoch: another one has to be elected, or it again
    with a newer epoch."""


class EpochReplication:
    """Master and slave of one broker.

    Args:
        role: of this broker; changed by the life cycle only.
        store: the log.
        settings: returns the current settings of the broker.
        epochs: those of the log.
        ask: requests another in-sync set from the controller (1001), in the background: it returns
            at once. What became of the request is said by `adopt`, `refused` or `lost`.
        commit: ends the waits for the disk.
        sync_flush: whether received bytes are on the disk before they are reported.
        clock: tells when something was received.

    ``master`` listens for slaves: start and close it as without a controller. ``copy`` is the slave
    side: start and close it as without a controller; it is idle until `follow`.
    """

    def __init__(
        self,
        role: Role,
        store: MessageStore,
        settings: Callable[[], BrokerSettings],
        epochs: EpochFile,
        *,
        ask: Callable[[Members], None],
        commit: GroupCommit,
        sync_flush: bool,
        clock: Clock,
    ) -> None: ...

    # --- life cycle -------------------------------------------------------------------------------

    async def lead(self, own_id: int, epoch: int, members: Members, version: int) -> None:
        """Become the master of an epoch, or take a newer epoch as the master.

        Call it before the role changes to SYNC_MASTER and before the first send is accepted. On
        return the epoch is in the epoch file, which is on the disk, and slaves are served as soon
        as the role is that of a master. A call that fails leaves this broker without a master.

        Args:
            own_id: the id that the controller gave to this broker.
            epoch: the master epoch.
            members, version: the in-sync set at the election, and its epoch.

        Raises:
            EpochError: this broker knows a newer epoch; or it was the master of this one before it
                lost power, and its log may have lost bytes that slaves have. Stay fenced until the
                controller elects with a newer epoch.
            StoreError: the disk refused; call it again.
        """

    def follow(self, own_id: int, epoch: int, ha_address: str) -> None:
        """Follow the master of an epoch; return at once.

        Call it after the role has changed to SLAVE. Sends that wait get their timeout at once.
        Connections to another address end. A master that knows only older epochs than the log here
        is refused.

        Args:
            own_id: the id that the controller gave to this broker.
            epoch: the master epoch, as the controller says.
            ha_address: where that master sends its log; empty if it is not known yet: call it again
                when it is. It must be the address of the elected broker itself.
        """

    def stop(self) -> None:
        """Neither lead nor follow, for instance when the controller knows no master.

        Call it after the role has changed to SLAVE.
        """

    # --- the in-sync set --------------------------------------------------------------------------

    def adopt(self, members: Members, version: int) -> None:
        """Take the in-sync set that the controller told, if it is newer; else do nothing.

        From the answer to a request, a poll (1004) or a notification (1008) of the same epoch.
        """

    def refused(self) -> None:
        """Note that the controller has refused the request under way."""

    def lost(self) -> None:
        """Note that the request under way has no answer: it may take effect at any time."""

    # --- state ------------------------------------------------------------------------------------

    @property
    def in_sync(self) -> InSyncSet | None:
        """The in-sync set while this broker leads; None otherwise."""

    @property
    def confirmed_to(self) -> int:
        """The confirm offset, for heartbeats to the controller (904) and the HA status (907)."""
