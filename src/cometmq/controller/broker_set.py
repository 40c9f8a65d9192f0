"""The rules of one broker set: ids, the master, epochs and the in-sync set.

Every function takes the state of a broker set and returns the next one; it changes nothing and
waits for nothing. `BrokerSetTable` reads and writes the state in one compare-and-set.
`broker_log_states` has the states of each log.

A member of the in-sync set is elected if its log is *verified*: no process before stopped
uncleanly, and the store is the one that the controller knows. If no such member lives, and all
members do, the one with the largest log is elected, see `_compared`. A broker that names no
process, as RocketMQ's, counts as verified.

A broker may be elected after it was lost, because that is noticed late. It is the only member then,
and another one may have more. Once it is back, and its log shows that it has not led, the members
before it count, too: one of them that is verified is elected.

Source: ReplicasInfoManager and DefaultElectPolicy, RocketMQ 5.3, which knows no processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from cometmq.controller.broker_log_states import TABLE as LOG_STATES
from cometmq.controller.broker_log_states import Event as LogEvent
from cometmq.controller.broker_log_states import State as LogState
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode

NO_ID = -1
"""The id of an election that the controller begins by itself."""
UNKNOWN = "Broker metadata is not existed"
Epochs = tuple[int, int]
"""The master epoch, and the epoch of the in-sync set."""


class Replica(msgspec.Struct, frozen=True):
    """One broker of a set."""

    address: str
    check_code: str
    """Sent with the request for the id; a request with the same code gets the same id again."""
    store_id: str = ""
    """The store to which the id belongs; empty for RocketMQ's."""
    incarnation: str = ""
    """The process that holds the id; empty for RocketMQ's."""
    log_state: LogState = LOG_STATES.first


class BrokerSet(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of one name, as kept in etcd; earlier releases ignore what they do not know."""

    cluster: str
    name: str
    set_id: str = ""
    """The id of the set; empty if no broker that knows set ids has registered."""
    last_id: int = 0
    """The largest id that was ever given."""
    replicas: dict[int, Replica] = {}
    master_id: int | None = None
    master_epoch: int = 0
    """Grows with each change of the master, also with the change to none."""
    master_incarnation: str = ""
    """The process that was elected; empty for RocketMQ's."""
    in_sync: tuple[int, ...] = ()
    """The ids that hold every confirmed byte; only they may become master."""
    in_sync_epoch: int = 0
    elected_epoch: int = 0
    """The master epoch of the election that made the master the only member.

    The same broker may be elected again in a newer one, before it has changed the set.
    """
    in_sync_before: tuple[int, ...] = ()
    """The members among which that election chose; empty once its master has changed the set."""
    was_compared: bool = False
    """Whether that election compared logs: not each of these has all that was acknowledged."""

    @property
    def epochs(self) -> Epochs:
        """The master epoch and that of the in-sync set."""
        return self.master_epoch, self.in_sync_epoch

    @property
    def master_address(self) -> str | None:
        """The master's address; None without a master."""
        return None if self.master_id is None else self.replicas[self.master_id].address


class Candidate(msgspec.Struct, frozen=True):
    """The content of the last heartbeat of a living broker."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    """The smaller one wins."""
    needed_to: int = 0
    """A log offset up to which a member of the in-sync set had the log before it said this."""


class Heard(msgspec.Struct, frozen=True):
    """The largest numbers in the heartbeats of a broker set, also of brokers that are lost.

    Epochs are also those that the controller itself has read from etcd, or written.
    """

    epochs: Epochs = (0, 0)
    by: int = NO_ID
    """The broker that knew those epochs first; in etcd, their master."""
    confirmed_to: int = 0
    """The largest confirm offset."""
    counts_from: int = 0
    """The master epoch from which confirm offsets count: it began without confirmed messages."""


class Names(msgspec.Struct, frozen=True):
    """The names that a broker sends when it registers."""

    store_id: str
    incarnation: str
    earlier: tuple[str, ...] = ()
    """The incarnations of the starts before."""
    stopped_cleanly: bool = False


class Election(msgspec.Struct, frozen=True):
    """The outcome of an election."""

    after: BrokerSet
    code: int
    """0 for a new master, or the reason why there is none."""
    remark: str | None = None
    waits: str = ""
    """Why no member was elected, and for which brokers that waits."""


def apply_id(
    before: BrokerSet | None,
    cluster: str,
    name: str,
    id_: int,
    code: str,
    *,
    store_id: str = "",
    new_set_id: str = "",
) -> BrokerSet:
    """Give a broker the id that it requests.

    Args:
        before: the broker set.
        cluster, name: of the broker.
        id_: the id.
        code: by which the broker is recognized.
        store_id: its store; empty for RocketMQ's.
        new_set_id: the name of a new set.

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
        before = BrokerSet(cluster=cluster, name=name, set_id=new_set_id)
    holder = before.replicas.get(id_)
    is_taken = holder is not None and (holder.check_code, holder.store_id) != (code, store_id)
    if id_ < 1 or before.cluster != cluster or is_taken:
        raise ResponseError(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"Fail to apply brokerId: {id_} in broker-set: {name}",
        )
    if holder is not None:
        return before
    replica = Replica(address=code.partition(";")[0], check_code=code, store_id=store_id)
    return msgspec.structs.replace(
        before, replicas={**before.replicas, id_: replica}, last_id=max(before.last_id, id_)
    )


def check_set(before: BrokerSet, set_id: str) -> None:
    """Refuse a broker of another set.

    Raises:
        ResponseError: 2014; both have an id, and these differ.
    """
    if set_id and before.set_id and set_id != before.set_id:
        raise ResponseError(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"the broker belongs to another set of the name {before.name}: met set {set_id},"
            f" expected {before.set_id}",
        )


def register(
    before: BrokerSet | None,
    name: str,
    id_: int,
    address: str,
    *,
    set_id: str = "",
    new_set_id: str = "",
    names: Names | None = None,
    is_alive: Callable[[BrokerSet, int], bool] = lambda _known, _id: False,
) -> BrokerSet:
    """Record the address and the process of a broker that has an id.

    Args:
        before: the broker set.
        name: of the set.
        id_: of the broker.
        address: of the broker.
        set_id: the set to which the store belongs; empty if it does not say.
        new_set_id: the name of the set, if it has none and the broker knows none.
        names: of the store and the process; None for RocketMQ's.
        is_alive: returns whether the process that holds an id is alive.

    Raises:
        ResponseError: 2010; the set or the id is unknown. 2014; the broker belongs to another set,
            or another process holds the id.
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
    check_set(before, set_id)
    holder = replica
    if names is None:
        if replica.incarnation and replica.address != address and is_alive(before, id_):
            raise _held(id_, replica, "none")
        replica = Replica(
            address=address,
            check_code=replica.check_code,
            log_state=LOG_STATES.row(replica.log_state, LogEvent.STARTED_UNNAMED).after,
        )
    elif names.incarnation == replica.incarnation:
        replica = msgspec.structs.replace(replica, address=address)
    else:
        is_restart = names.store_id == replica.store_id and replica.incarnation in names.earlier
        is_first = not replica.incarnation and replica.store_id in ("", names.store_id)
        can_replace = is_first or (is_restart and replica.address == address)
        if not can_replace and is_alive(before, id_):
            raise _held(id_, replica, names.incarnation)
        event = _start_event(names, is_known=is_first or is_restart)
        replica = Replica(
            address=address,
            check_code=replica.check_code,
            store_id=names.store_id,
            incarnation=names.incarnation,
            log_state=LOG_STATES.row(replica.log_state, event).after,
        )
    after = before
    if replica != holder:
        after = msgspec.structs.replace(after, replicas={**before.replicas, id_: replica})
    if names is not None and not before.set_id:
        after = msgspec.structs.replace(after, set_id=set_id or new_set_id)
    return after


def _held(id_: int, holder: Replica, incarnation: str) -> ResponseError:
    return ResponseError(
        ResponseCode.CONTROLLER_BROKER_ID_INVALID,
        f"another process with the broker id {id_} is alive: met incarnation {incarnation},"
        f" expected {holder.incarnation or 'that'} at {holder.address}; stop one of them: a copy of"
        " a store needs an id of its own, which it gets without brokerIdentity",
    )


def _start_event(names: Names, *, is_known: bool) -> LogEvent:
    if not is_known:
        return LogEvent.STARTED_ELSEWHERE
    return LogEvent.STARTED if names.stopped_cleanly else LogEvent.STARTED_AFTER_KILL


class InSyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a master to replace the in-sync set."""

    wanted: Sequence[int]
    """The in-sync set that is requested."""
    master_id: int
    """The id of the sender, which takes itself for the master of these epochs."""
    master_epoch: int
    in_sync_epoch: int
    renews: bool = False
    """Whether the in-sync set may be the one that is in force."""
    known_epoch: int = 0
    """The newest epoch of the set that the master knows: the next one is larger."""
    incarnation: str = ""
    """The process of the master; empty if it does not say."""
    compared: Mapping[int, str] = {}
    """The processes of members whose log the master has compared."""


def alter_in_sync(
    before: BrokerSet | None,
    request: InSyncRequest,
    *,
    is_alive: Callable[[int], bool],
    heard: Heard = Heard(),  # noqa: B008 (frozen)
) -> BrokerSet:
    """Replace the in-sync set, as its master requests.

    A master that got no response to a request cannot know whether it still arrives. It may request
    the set that is in force: with the next number of that set, all earlier requests are refused.
    RocketMQ has no such request.

    The master has compared the log of each member that it takes. So the members whose process it
    names are verified, and those that it takes anew, unless it names another process.

    Args:
        before: the broker set.
        request: what its master requests.
        is_alive: returns whether a broker of the set is alive.
        heard: what was heard before the broker set was read.

    Raises:
        ResponseError: the sender is not the master of this epoch, or the set cannot be so.
    """
    master_id, master_epoch = request.master_id, request.master_epoch
    incarnation, compared = request.incarnation, request.compared
    refusal = "Rejecting alter syncStateSet request because"
    if before is None:
        raise ResponseError(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, UNKNOWN)
    new = tuple(sorted(set(request.wanted)))
    is_in_force = set(new) == set(before.in_sync)
    if is_in_force and not request.renews:
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
    if incarnation and before.master_incarnation not in ("", incarnation):
        raise ResponseError(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"{refusal} another process of broker {master_id} was elected: met incarnation"
            f" {incarnation}, expected {before.master_incarnation}",
        )
    if master_epoch != before.master_epoch:
        raise ResponseError(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"{refusal} the current master epoch is:{{{before.master_epoch}}},"
            f" not {{{master_epoch}}}",
        )
    if heard.epochs[0] > before.master_epoch:
        raise ResponseError(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"{refusal} an older backup of etcd names the master of the epoch {master_epoch}, but"
            f" one of the epoch {heard.epochs[0]} was elected; the next scan elects",
        )
    if request.in_sync_epoch != before.in_sync_epoch:
        raise ResponseError(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"{refusal} the current syncStateSet epoch is:{{{before.in_sync_epoch}}},"
            f" not {{{request.in_sync_epoch}}}",
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
    for id_ in new:
        if id_ in compared and compared[id_] != before.replicas[id_].incarnation:
            raise ResponseError(
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
                f"{refusal} another process of broker {id_} has registered: met incarnation"
                f" {compared[id_]}, expected {before.replicas[id_].incarnation}",
            )
    if master_id not in new:
        raise ResponseError(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"{refusal} the newSyncStateSet {list(new)} doesn't contain the master {{{master_id}}}",
        )
    compares = [id_ for id_ in new if id_ in compared or id_ not in before.in_sync]
    return msgspec.structs.replace(
        before,
        replicas=_with_log_event(before, LogEvent.COMPARED, *compares),
        in_sync=new,
        in_sync_epoch=max(before.in_sync_epoch, request.known_epoch) + 1,
        in_sync_before=before.in_sync_before if is_in_force else (),
    )


def _with_log_event(before: BrokerSet, event: LogEvent, *ids: int) -> dict[int, Replica]:
    return {
        id_: msgspec.structs.replace(one, log_state=LOG_STATES.row(one.log_state, event).after)
        if id_ in ids
        else one
        for id_, one in before.replicas.items()
    }


def elect(
    before: BrokerSet | None,
    living: Mapping[int, Candidate],
    *,
    asker: int = NO_ID,
    designated: bool = False,
    unclean: bool = False,
    heard: Heard = Heard(),  # noqa: B008 (frozen)
) -> Election:
    """Elect a master.

    If a broker knows larger epochs than this set has, etcd was restored from an older backup: then
    its in-sync set may lack those that have acknowledged since, and all brokers are compared.

    Args:
        before: the broker set.
        living: the brokers of the set that are alive: the processes that hold the ids.
        asker: the id in the request, or `NO_ID`.
        designated: whether only ``asker`` may be elected.
        unclean: whether brokers outside of the in-sync set may be elected if no member is alive.
            Acknowledged messages that they lack are lost then.
        heard: what was heard before the broker set was read.

    Raises:
        ResponseError: 2010; the set is unknown.
    """
    if before is None:
        raise ResponseError(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered"
        )
    is_behind = heard.epochs > before.epochs
    if before.master_epoch == 0 and not is_behind:
        # No broker of the set has ever been written to, so any of them may begin; the controller
        # does not begin by itself, because the in-sync set would stay empty for ever.
        elected = asker if asker in before.replicas else None
        if elected is None:
            return Election(before, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, _FAILED)
        return Election(_with_master(before, elected, ()), ResponseCode.SUCCESS)
    known = {id_: candidate for id_, candidate in living.items() if id_ in before.replicas}
    wanted = asker if designated and asker != NO_ID else None
    old_master = _living_master(before, known) if heard.epochs[0] <= before.master_epoch else None
    among = before.replicas if is_behind else _members(before, known)
    members = before.in_sync if is_behind or before.was_compared else among
    able: Mapping[int, Candidate] = {
        id_: known[id_]
        for id_ in members
        if id_ in known
        and (id_ == old_master or (not is_behind and _is_able(before.replicas[id_], known[id_])))
    }
    elected, waits, compares = _choose(able, old_master, wanted), "", False
    if elected is None and not able:
        members, compares = among, True
        able, waits = _compared(before, known, heard, members)
        elected = _choose(able, None, wanted)
    if elected is None and unclean:
        members, compares = (), False
        elected = _choose(known, old_master, wanted)
    if elected is None:
        if asker != NO_ID:
            remark = f"{_FAILED}: {waits}" if waits else _FAILED
            return Election(
                before, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark, waits=waits
            )
        return Election(
            _without_master(before),
            ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
            f"The broker {before.name} has no master and no living broker of its syncStateSet",
            waits=waits,
        )
    if elected == old_master:
        return Election(
            before,
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            f"The old master {elected} is still alive,"
            f" not need to elect new master for broker {before.name}",
        )
    after = _with_master(before, elected, members, heard, compares=compares)
    return Election(after, ResponseCode.SUCCESS)


def _living_master(before: BrokerSet, known: Mapping[int, Candidate]) -> int | None:
    """Return the master if the process that was elected is alive."""
    master = before.master_id
    if master is None or master not in known:
        return None
    incarnation = before.replicas[master].incarnation
    return master if before.master_incarnation in ("", incarnation) else None


def _is_able(replica: Replica, candidate: Candidate) -> bool:
    """Return whether a member may be elected without a comparison."""
    return (
        replica.log_state is LogState.VERIFIED
        and max(candidate.max_offset, 0) >= candidate.needed_to
    )


def _members(before: BrokerSet, known: Mapping[int, Candidate]) -> Collection[int]:
    """Return the in-sync set, and the members before it if the elected one has not led since.

    A master writes its epoch into its epoch file before it takes the first message. The process
    that was elected may have begun after its last heartbeat, so only a later one, of the same
    store, shows that it has not.
    """
    for id_ in before.in_sync:
        replica = before.replicas[id_]
        is_later = replica.incarnation != before.master_incarnation
        is_known = id_ in known and is_later and replica.log_state is not LogState.REPLACED
        if not is_known or known[id_].epoch >= before.elected_epoch:
            return before.in_sync
    return {*before.in_sync, *before.in_sync_before}


def _compared(
    before: BrokerSet, known: Mapping[int, Candidate], heard: Heard, compared: Collection[int]
) -> tuple[Mapping[int, Candidate], str]:
    """Return the brokers with the largest log, if all of a set can be compared; and why not.

    With synchronous flush, one of the members has all that was acknowledged on its disk: then the
    largest log has it. A store that was replaced may have less than was acknowledged from it.

    Args:
        before: the broker set.
        known: the living brokers.
        heard: what heartbeats said.
        compared: the ids of those to compare.
    """
    lost = [id_ for id_ in compared if id_ not in known]
    if lost:
        texts = [f"{id_} at {before.replicas[id_].address}" for id_ in sorted(lost)]
        return {}, f"no verified member is alive; waits for the brokers {', '.join(texts)}"
    if replaced := [id_ for id_ in compared if before.replicas[id_].log_state is LogState.REPLACED]:
        return {}, (
            f"no verified member is alive, and the stores of the brokers {sorted(replaced)} were"
            " replaced; waits for another member, or for enableElectUncleanMaster"
        )
    if heard.epochs > before.epochs and heard.by not in before.replicas:
        return {}, (
            f"broker {heard.by} knows the epochs {heard.epochs}, and etcd neither it nor them:"
            " restore a newer backup of etcd, or register the brokers again"
        )
    best = max((_length(known[id_]) for id_ in compared), default=(-1, -1))
    if max(best[1], 0) < heard.confirmed_to:
        return {}, (
            f"the logs of the members end at {best[1]}, but {heard.confirmed_to} was confirmed;"
            " waits for a broker that has it, or for enableElectUncleanMaster"
        )
    return {id_: known[id_] for id_ in compared if _length(known[id_]) == best}, ""


def _length(candidate: Candidate) -> tuple[int, int]:
    return candidate.epoch, candidate.max_offset


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


def _with_master(
    before: BrokerSet,
    id_: int,
    members: Collection[int],
    heard: Heard = Heard(),  # noqa: B008 (frozen)
    *,
    compares: bool = False,
) -> BrokerSet:
    epoch = max(before.master_epoch, heard.epochs[0]) + 1
    after = msgspec.structs.replace(
        before,
        replicas=_with_log_event(before, LogEvent.ELECTED, id_),
        master_id=id_,
        master_epoch=epoch,
        master_incarnation=before.replicas[id_].incarnation,
        in_sync=(id_,),
        in_sync_epoch=max(before.in_sync_epoch, heard.epochs[1]) + 1,
    )
    if members == before.in_sync == (id_,):  # it may have led since it became the only member
        return after
    return msgspec.structs.replace(
        after,
        elected_epoch=epoch,
        in_sync_before=tuple(sorted(members)),
        was_compared=compares,
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
    # Without the only member, those before it do not count: it may have led, and nothing shows it.
    in_sync_before = () if changed else tuple(id_ for id_ in before.in_sync_before if id_ in left)
    return msgspec.structs.replace(
        after,
        replicas=left,
        in_sync=in_sync,
        in_sync_epoch=before.in_sync_epoch + changed,
        in_sync_before=in_sync_before,
    )
