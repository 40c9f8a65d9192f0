"""The in-sync set: the brokers of which one may become master, as the master sees it.

    member            has every confirmed byte of the log; the master is one
    confirm offset    the end of what all members have

The controller owns the set. The master requests one with a slave that has caught up, or without one
that was left behind, or returned without confirmed bytes after a power cut. Until the response
is there, either set may be the true one: then a send that waits for all members waits for those of
both, and a slave of either counts for the confirm offset.

A request without a response may take effect at any time until the controller has a newer set: it
accepts one change of each epoch of the set. So the sets of all requests since then count, until the
controller has renewed the set, that is, has given it the next epoch.

A slave may be elected as soon as it is a member, so it needs all confirmed bytes before. While the
log grows it never has all of it. So it joins first: it counts like a member, and nothing more is
confirmed until it has what was confirmed before.

Source: AutoSwitchHAService, RocketMQ 5.3, where a member that has not reported yet holds nothing
back.
"""

from __future__ import annotations

from typing import NamedTuple

BrokerIds = frozenset[int]
"""The ids that the controller gave to brokers."""


class _Progress(NamedTuple):
    acknowledged_to: int
    caught_up_s: float
    """The latest time for which it is known to have all of the log that was there then."""
    mark: int
    """The end of the log at a later time; when it has that, it has caught up with that time."""
    mark_s: float


class InSyncSet:
    """The in-sync set of a master.

    Args:
        own_id: the id that the controller gave to this broker.
        members, in_sync_epoch: the set at the election.
        confirmed_to: the confirm offset at that time.
        now_s: the time of the election; members of the in-sync set have from then on to connect.
    """

    def __init__(
        self,
        own_id: int,
        members: BrokerIds,
        in_sync_epoch: int,
        *,
        confirmed_to: int,
        now_s: float,
    ) -> None:
        self.own_id = own_id
        self.members = members
        self.in_sync_epoch = in_sync_epoch
        """The epoch of this set: a number that grows with each change of it."""
        self.requested: BrokerIds | None = None
        """The set that the request under way is for."""
        self.joining: int | None = None
        """The slave that is about to become a member of the in-sync set."""
        self.confirmed_to = confirmed_to
        self.all = self.certain = members
        """All possible members of the in-sync set, and the certain ones."""
        self.least_count = len(members)
        """How many members of the in-sync set there are for certain."""
        self._unanswered: set[BrokerIds] = set()
        """The sets of requests of this epoch that had no response."""
        self._renewal_failed = False
        """Whether the last request that the controller has refused was to renew the set."""
        self._began_s = now_s
        self._slaves: dict[int, _Progress] = {}
        """The slaves that are connected and have reported."""

    # --- the controller -------------------------------------------------------------------------

    def request(self, members: BrokerIds, *, renews: bool = False) -> bool:
        """Note the request for a set; return False if it must not be made.

        Args:
            members: the set.
            renews: whether it may be the set that is in force.
        """
        if self.requested is not None or self.own_id not in members:
            return False
        if members == self.members and not self._unanswered and not renews:
            return False
        self.requested = members
        if self.joining in members:
            self.joining = None
        self._combine()
        return True

    def adopt(self, members: BrokerIds, in_sync_epoch: int) -> bool:
        """Take the set of the controller; return False if it is known or older."""
        if in_sync_epoch <= self.in_sync_epoch:
            return False
        self.members, self.in_sync_epoch = members, in_sync_epoch
        self.requested = None
        if self.joining in members:
            self.joining = None
        self._unanswered.clear()
        self._renewal_failed = False
        self._combine()
        return True

    def refused(self, in_sync_epoch: int, *, was_sent: bool = True) -> bool:
        """Note that the request of an epoch of the set certainly never takes effect.

        Args:
            in_sync_epoch: the epoch of the set when it was made.
            was_sent: whether the controller has refused it.

        Returns:
            False if a newer set is known since: then it may not be the request under way.
        """
        if in_sync_epoch != self.in_sync_epoch:
            return False
        if was_sent:
            self._renewal_failed = self.requested == self.members
        self.requested = None
        self._combine()
        return True

    def unanswered(self, in_sync_epoch: int) -> bool:
        """Note that the request of an epoch of the set has no response: it may still take effect.

        Returns:
            False if a newer set is known since: then it never does.
        """
        if in_sync_epoch != self.in_sync_epoch:
            return False
        if self.requested is not None:
            self._unanswered.add(self.requested)
            self.requested = None
            self._combine()
        return True

    def renewal(self) -> BrokerIds | None:
        """Return the set to request after one without a response, so that a newer set follows.

        Until then the set without a response counts, perhaps for ever. A controller of RocketMQ
        refuses to renew the present set. It gets a request for one without a slave, which then
        joins again; without slaves, `is_stuck` is true.
        """
        if not self._unanswered:
            return None
        if self._renewal_failed and len(self.members) > 1:
            return self.members - {max(self.members - {self.own_id})}
        return self.members

    def is_stuck(self, in_sync_epoch: int) -> bool:
        """Return whether the request of an epoch of the set renews one without slaves."""
        is_renewal = self.requested == self.members == {self.own_id}
        return is_renewal and in_sync_epoch == self.in_sync_epoch

    def _combine(self) -> None:
        """Combine the sets of which one is the true one."""
        possible = [self.members, *self._unanswered]
        if self.requested is not None:
            possible.append(self.requested)
        joining = () if self.joining is None else (self.joining,)
        self.all = self.members.union(*possible, joining)
        self.certain = self.members.intersection(*possible)
        self.least_count = min(map(len, possible))

    # --- slaves ---------------------------------------------------------------------------------

    def reported(self, slave_id: int, acknowledged_to: int, log_end: int, now_s: float) -> None:
        """Take the report of a slave."""
        before = self._slaves.get(slave_id)
        if before is None or acknowledged_to >= log_end:
            now = _Progress(acknowledged_to, now_s, log_end, now_s)
        elif acknowledged_to >= before.mark:
            now = _Progress(acknowledged_to, before.mark_s, log_end, now_s)
        else:
            now = before._replace(acknowledged_to=acknowledged_to)
        self._slaves[slave_id] = now
        if slave_id in self.all:
            self.written(log_end)

    def idle(self, log_end: int, now_s: float) -> None:
        """Note the time for all slaves that have the whole log."""
        for slave_id, slave in self._slaves.items():
            if slave.acknowledged_to >= log_end:
                self.reported(slave_id, slave.acknowledged_to, log_end, now_s)

    def disconnected(self, slave_id: int) -> None:
        """Forget the reports of a slave."""
        self._slaves.pop(slave_id, None)
        if slave_id == self.joining:
            self.end_joining()

    def with_slave(self, slave_id: int, epoch_start: int) -> BrokerIds | None:
        """Return the set to request if a slave has caught up that is not in sync, else None.

        Args:
            slave_id: which one.
            epoch_start: where the epoch of this master begins: a slave that has less may have
                other bytes there.
        """
        if slave_id in self.members or not self.has_confirmed(slave_id, epoch_start):
            return None
        return self.members | {slave_id}

    def join(self, slave_id: int, log_end: int, lag_max: int) -> bool:
        """Count a slave like a member of the in-sync set if it lacks few bytes; else return False.

        Args:
            slave_id: which one.
            log_end: the end of the log.
            lag_max: how many bytes it may lack.
        """
        slave = self._slaves.get(slave_id)
        if slave is None or slave_id in self.members or log_end - slave.acknowledged_to > lag_max:
            return False
        if self.joining is not None or self.requested is not None:
            return False
        self.written(log_end)
        self.joining = slave_id
        self._combine()
        return True

    def end_joining(self) -> None:
        """Count the slave that was about to become a member of the in-sync set no more."""
        self.joining = None
        self._combine()

    def without_slow(self, now_s: float, limit_s: float) -> BrokerIds | None:
        """Return the set to request if slaves were left behind for longer than a limit."""
        slow = {
            member
            for member in self.members - {self.own_id}
            if now_s - self._caught_up_s(member) > limit_s
        }
        return self.members - slow if slow else None

    def has_confirmed(self, slave_id: int, epoch_start: int) -> bool:
        """Return whether a slave has reported all that is confirmed, and this master's epoch."""
        slave = self._slaves.get(slave_id)
        return slave is not None and slave.acknowledged_to >= max(self.confirmed_to, epoch_start)

    def lacking(self) -> set[int]:
        """Return the members of the in-sync set that have reported less than what is confirmed."""
        return {
            slave_id
            for slave_id, slave in self._slaves.items()
            if slave.acknowledged_to < self.confirmed_to and slave_id in self.members
        }

    def _caught_up_s(self, member: int) -> float:
        slave = self._slaves.get(member)
        return self._began_s if slave is None else slave.caught_up_s

    def offset_at(self, count: int, log_end: int) -> int:
        """Return the log offset that ``count`` members have for certain; -1 for none."""
        offsets = sorted(
            (
                slave.acknowledged_to
                for slave_id, slave in self._slaves.items()
                if slave_id in self.certain
            ),
            reverse=True,
        )
        if count <= 1:
            return log_end
        return offsets[count - 2] if len(offsets) >= count - 1 else -1

    # --- the confirm offset ---------------------------------------------------------------------

    def written(self, log_end: int) -> int:
        """Return the confirm offset for a log that ends there.

        While a member of the in-sync set is not connected it stays as it is.
        """
        others = self.all - {self.own_id}
        if others <= self._slaves.keys():
            ends = [self._slaves[slave_id].acknowledged_to for slave_id in others]
            self.confirmed_to = max(self.confirmed_to, min([log_end, *ends]))
        return self.confirmed_to

    @property
    def is_alone(self) -> bool:
        """Whether this broker is the only one that may be a member of the in-sync set."""
        return self.all == {self.own_id}
