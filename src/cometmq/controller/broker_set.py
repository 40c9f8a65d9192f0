"""The rules of one broker set: ids, the master, epochs and the in-sync set.

Every function takes the state of a broker set and returns the next one; it changes nothing and
waits for nothing. `BrokerSetTable` reads and writes the state in one compare-and-set.

Source: ReplicasInfoManager and DefaultElectPolicy, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode

NO_ID = -1
"""The id of an election that the controller begins by itself."""
UNKNOWN = "Broker metadata is not existed"


class Replica(msgspec.Struct, frozen=True):
    """One broker of a set."""

    address: str
    check_code: str
    """Sent with the request for the id; a request with the same code gets the same id again."""


class BrokerSet(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of one name, as kept in etcd."""

    cluster: str
    name: str
    last_id: int = 0
    """The largest id that was ever given."""
    replicas: dict[int, Replica] = {}
    master_id: int | None = None
    master_epoch: int = 0
    """Grows with each change of the master, also with the change to none."""
    in_sync: tuple[int, ...] = ()
    """The ids that hold every confirmed byte; only they may become master."""
    in_sync_epoch: int = 0

    @property
    def master_address(self) -> str | None:
        """The master's address; None without a master."""
        return None if self.master_id is None else self.replicas[self.master_id].address


class Candidate(msgspec.Struct, frozen=True):
    """What the last heartbeat of a living broker said."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    """The smaller one wins."""


class Election(msgspec.Struct, frozen=True):
    """The outcome of an election."""

    after: BrokerSet
    code: int
    """0 for a new master, or the reason why there is none."""
    remark: str | None = None


def apply_id(before: BrokerSet | None, cluster: str, name: str, id_: int, code: str) -> BrokerSet:
    """Give a broker the id that it requests.

    Raises:
        ResponseError: 2014; the id is taken, or it is not the first of a new set.
    """
    if before is None:
        if id_ != 1:
            raise ResponseError(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Broker-set: {name} hasn't been registered in controller,"
                f" but broker try to apply brokerId: {id_}",
            )
        before = BrokerSet(cluster=cluster, name=name)
    holder = before.replicas.get(id_)
    if id_ < 1 or before.cluster != cluster or (holder and holder.check_code != code):
        raise ResponseError(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"Fail to apply brokerId: {id_} in broker-set: {name}",
        )
    if holder is not None:
        return before
    replica = Replica(address=code.partition(";")[0], check_code=code)
    return msgspec.structs.replace(
        before, replicas={**before.replicas, id_: replica}, last_id=max(before.last_id, id_)
    )


def register(before: BrokerSet | None, name: str, id_: int, address: str) -> BrokerSet:
    """Record the address of a broker that has an id.

    Raises:
        ResponseError: 2010; the set or the id is unknown.
    """
    if before is None:
        raise ResponseError(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker-set: {name} hasn't been registered in controller",
        )
    replica = before.replicas.get(id_)
    if replica is None:
        raise ResponseError(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"BrokerId: {id_} hasn't been registered in broker-set: {name}",
        )
    if replica.address == address:
        return before
    moved = msgspec.structs.replace(replica, address=address)
    return msgspec.structs.replace(before, replicas={**before.replicas, id_: moved})


def alter_in_sync(
    before: BrokerSet | None,
    wanted: Sequence[int],
    *,
    master_id: int,
    master_epoch: int,
    in_sync_epoch: int,
    is_alive: Callable[[int], bool],
    renews: bool = False,
) -> BrokerSet:
    """Replace the in-sync set, as its master requests.

    A master that got no response to a request cannot know whether it still arrives. It may request
    the set that is in force: with the next number of that set, all earlier requests are refused.
    RocketMQ has no such request.

    Args:
        before: the broker set.
        wanted: the in-sync set that is requested.
        master_id, master_epoch, in_sync_epoch: what the sender takes for the present state.
        is_alive: returns whether a broker of the set is alive.
        renews: whether the in-sync set may be the one that is in force.

    Raises:
        ResponseError: the sender is not the master of this epoch, or the set cannot be so.
    """
    refusal = "Rejecting alter syncStateSet request because"
    if before is None:
        raise ResponseError(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, UNKNOWN)
    new = tuple(sorted(set(wanted)))
    is_in_force = set(new) == set(before.in_sync)
    if is_in_force and not renews:
        raise ResponseError(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        )
    if master_id != before.master_id:
        current = "none" if before.master_id is None else before.master_id
        raise ResponseError(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"{refusal} the current leader is:{{{current}}}, not {{{master_id}}}",
        )
    if master_epoch != before.master_epoch:
        raise ResponseError(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"{refusal} the current master epoch is:{{{before.master_epoch}}},"
            f" not {{{master_epoch}}}",
        )
    if in_sync_epoch != before.in_sync_epoch:
        raise ResponseError(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"{refusal} the current syncStateSet epoch is:{{{before.in_sync_epoch}}},"
            f" not {{{in_sync_epoch}}}",
        )
    for id_ in () if is_in_force else new:
        if id_ not in before.replicas:
            raise ResponseError(
                ResponseCode.CONTROLLER_INVALID_REPLICAS,
                f"{refusal} the replicas {{{id_}}} don't exist",
            )
        if not is_alive(id_):
            raise ResponseError(
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
                f"{refusal} the replicas {{{id_}}} don't alive",
            )
    if master_id not in new:
        raise ResponseError(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"{refusal} the newSyncStateSet {list(new)} doesn't contain the master {{{master_id}}}",
        )
    return msgspec.structs.replace(before, in_sync=new, in_sync_epoch=before.in_sync_epoch + 1)


def elect(
    before: BrokerSet | None,
    living: Mapping[int, Candidate],
    *,
    asker: int = NO_ID,
    designated: bool = False,
    unclean: bool = False,
) -> Election:
    """Elect a master.

    Args:
        before: the broker set.
        living: the brokers of the set that are alive.
        asker: the id in the request, or `NO_ID`.
        designated: whether only ``asker`` may be elected.
        unclean: whether brokers outside of the in-sync set may be elected if no member is alive.
            Acknowledged messages that they lack are lost then.

    Raises:
        ResponseError: 2010; the set is unknown.
    """
    if before is None:
        raise ResponseError(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered"
        )
    if before.master_epoch == 0:
        # No broker of the set has ever been written to, so any of them may begin; the controller
        # does not begin by itself, because the in-sync set would stay empty for ever.
        elected = asker if asker in before.replicas else None
        if elected is None:
            return Election(before, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, _FAILED)
        return Election(_with_master(before, elected), ResponseCode.SUCCESS)
    known = {id_: candidate for id_, candidate in living.items() if id_ in before.replicas}
    members = {id_: known[id_] for id_ in before.in_sync if id_ in known}
    wanted = asker if designated and asker != NO_ID else None
    elected = _choose(members, before.master_id, wanted)
    if elected is None and unclean:
        elected = _choose(known, before.master_id, wanted)
    if elected is None:
        if asker != NO_ID:
            return Election(before, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, _FAILED)
        return Election(
            _without_master(before),
            ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
            f"The broker {before.name} has no master and no living broker of its syncStateSet",
        )
    if elected == before.master_id:
        return Election(
            before,
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            f"The old master {elected} is still alive,"
            f" not need to elect new master for broker {before.name}",
        )
    return Election(_with_master(before, elected), ResponseCode.SUCCESS)


_FAILED = "Failed to elect a new master"


def _choose(
    candidates: Mapping[int, Candidate], old_master: int | None, designated: int | None
) -> int | None:
    if designated is not None:
        return designated if designated in candidates else None
    if old_master is not None and old_master in candidates:
        return old_master
    return max(candidates, key=lambda id_: _rank(id_, candidates[id_]), default=None)


def _rank(id_: int, candidate: Candidate) -> tuple[int, int, int, int]:
    return candidate.epoch, candidate.max_offset, -candidate.priority, -id_


def _with_master(before: BrokerSet, id_: int) -> BrokerSet:
    return msgspec.structs.replace(
        before,
        master_id=id_,
        master_epoch=before.master_epoch + 1,
        in_sync=(id_,),
        in_sync_epoch=before.in_sync_epoch + 1,
    )


def _without_master(before: BrokerSet) -> BrokerSet:
    """Remove the master; without this epoch it could still alter the in-sync set."""
    if before.master_id is None:
        return before
    return msgspec.structs.replace(before, master_id=None, master_epoch=before.master_epoch + 1)


def clean(
    before: BrokerSet | None,
    name: str,
    ids: Collection[int] | None,
    *,
    living_too: bool,
    is_alive: Callable[[int], bool],
) -> BrokerSet | None:
    """Remove brokers from the set, and return None if none is left.

    Args:
        before: the broker set.
        name: of the set.
        ids: the brokers; None for all, which is refused while there is a master.
        living_too: whether living brokers and masters may be removed.
        is_alive: returns whether a broker of the set is alive.

    Raises:
        ResponseError: 2009; the set is unknown, or a broker is alive.
    """
    refused = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    if before is None:
        raise ResponseError(refused, f"Broker set {name} is not existed, clean broker data failure")
    if not living_too:
        if ids is None and before.master_id is not None:
            raise ResponseError(refused, f"Broker set {name} has a master, clean up failure")
        for id_ in ids or ():
            if is_alive(id_):
                raise ResponseError(
                    refused, f"Broker [{name},  {id_}] is still alive, clean up failure"
                )
    left = {id_: one for id_, one in before.replicas.items() if ids is not None and id_ not in ids}
    if not left:
        return None
    in_sync = tuple(id_ for id_ in before.in_sync if id_ in left)
    after = before if before.master_id in left else _without_master(before)
    # A master that still has the old in-sync set must read the new one before it may alter it.
    changed = in_sync != before.in_sync
    return msgspec.structs.replace(
        after, replicas=left, in_sync=in_sync, in_sync_epoch=before.in_sync_epoch + changed
    )
