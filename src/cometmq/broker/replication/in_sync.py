"""The in-sync set: the replicas of which one may become master, as the master sees it.

    member            has every confirmed byte of the log; the master is one
    confirm offset    the end of what all members have

The controller owns the set. The master asks it to add a slave that has caught up, and to remove one
that was left behind. Until the answer is known, either set may be the true one: then a send that
waits for all members waits for those of both, and a slave of either counts for the confirm offset.

A request without an answer may take effect at any time until the controller tells a newer set: it
accepts one change of each version. So the sets of all requests since then count.

Source: AutoSwitchHAService, RocketMQ 5.3, where a member that has not reported yet holds nothing
back.
"""

from __future__ import annotations

from typing import NamedTuple

Members = frozenset[int]
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
        members, version: the set at the election.
        confirmed_to: the confirm offset at that time.
        now_s: the time of the election; members have from then on to connect.
    """

    def __init__(
        self, own_id: int, members: Members, version: int, *, confirmed_to: int, now_s: float
    ) -> None:
        self.own_id = own_id
        self.members = members
        self.version = version
        """Which number the controller gave to this set."""
        self.wanted: Members | None = None
        """The set that the request under way asks for."""
        self.confirmed_to = confirmed_to
        self._lost: set[Members] = set()
        """The sets of requests of this version that had no answer."""
        self._began_s = now_s
        self._slaves: dict[int, _Progress] = {}
        """The slaves that are connected and have reported."""

    # --- the controller -------------------------------------------------------------------------

    def ask(self, members: Members) -> bool:
        """Note that the controller is asked for another set; return False if it must not be."""
        if self.wanted is not None or members == self.members or self.own_id not in members:
            return False
        self.wanted = members
        return True

    def adopt(self, members: Members, version: int) -> bool:
        """Take the set that the controller told; return False if it is known or older."""
        if version <= self.version:
            return False
        self.members, self.version = members, version
        self.wanted = None
        self._lost.clear()
        return True

    def refused(self) -> None:
        """Note that the controller has refused the request under way."""
        self.wanted = None

    def lost(self) -> None:
        """Note that the request under way gets no answer: it may take effect at any time."""
        if self.wanted is not None:
            self._lost.add(self.wanted)
            self.wanted = None

    def _possible(self) -> list[Members]:
        """Return the sets of which one is the true one."""
        wanted = [] if self.wanted is None else [self.wanted]
        return [self.members, *self._lost, *wanted]

    @property
    def all(self) -> Members:
        """All that may be members."""
        return self.members.union(*self._possible())

    @property
    def least_count(self) -> int:
        """How many members there are for certain."""
        return min(map(len, self._possible()))

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
            self._confirm(log_end)

    def idle(self, log_end: int, now_s: float) -> None:
        """Note the time for all slaves that have the whole log."""
        for slave_id, slave in self._slaves.items():
            if slave.acknowledged_to >= log_end:
                self.reported(slave_id, slave.acknowledged_to, log_end, now_s)

    def disconnected(self, slave_id: int) -> Members | None:
        """Forget a slave; return the set to ask for if it was a member."""
        self._slaves.pop(slave_id, None)
        return self.members - {slave_id} if slave_id in self.members else None

    def with_slave(self, slave_id: int, epoch_start: int) -> Members | None:
        """Return the set to ask for if a slave has caught up that is no member, else None.

        Args:
            slave_id: which one.
            epoch_start: where the epoch of this master begins: a slave that has less may have
                other bytes there.
        """
        slave = self._slaves.get(slave_id)
        if slave is None or slave_id in self.members:
            return None
        if slave.acknowledged_to < max(self.confirmed_to, epoch_start):
            return None
        return self.members | {slave_id}

    def without_slow(self, now_s: float, limit_s: float) -> Members | None:
        """Return the set to ask for if members were left behind for longer than a limit."""
        slow = {
            member
            for member in self.members - {self.own_id}
            if now_s - self._caught_up_s(member) > limit_s
        }
        return self.members - slow if slow else None

    def _caught_up_s(self, member: int) -> float:
        slave = self._slaves.get(member)
        return self._began_s if slave is None else slave.caught_up_s

    def have(self, log_offset: int) -> int:
        """Return how many of all that may be members have the log up to an offset, this one too."""
        return 1 + sum(
            slave.acknowledged_to >= log_offset
            for slave_id, slave in self._slaves.items()
            if slave_id in self.all
        )

    def all_have(self, log_offset: int) -> bool:
        """Return whether all that may be members have the log up to an offset."""
        return self.have(log_offset) == len(self.all)

    # --- the confirm offset ---------------------------------------------------------------------

    def written(self, log_end: int) -> int:
        """Return the confirm offset for a log that ends there."""
        if self.all == {self.own_id}:
            self.confirmed_to = max(self.confirmed_to, log_end)
        return self.confirmed_to

    def _confirm(self, log_end: int) -> None:
        others = self.all - {self.own_id}
        if others <= self._slaves.keys():
            ends = (self._slaves[slave_id].acknowledged_to for slave_id in others)
            self.confirmed_to = max(self.confirmed_to, min(log_end, *ends))
