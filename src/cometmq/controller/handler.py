"""Handles requests of brokers and tools.

Only the active controller decides; the others respond 2007 and name it in 1005. If etcd gives no
response the code is 2007, too: brokers then look for the active controller and send the request
again. The change that was requested may have been stored or not.

Source: ControllerRequestProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.access.needs import ADMINISTRATOR, NOTHING, StatedNeeds
from cometmq.controller.active import ActiveController
from cometmq.controller.broker_log_states import State as LogState
from cometmq.controller.broker_set import (
    UNKNOWN,
    BrokerSet,
    Heard,
    InSyncRequest,
    Names,
    alter_in_sync,
    apply_id,
    check_set,
    clean,
)
from cometmq.controller.broker_set import register as register_broker
from cometmq.controller.broker_set_table import BrokerSetTable
from cometmq.controller.elections import Elections, sync_state_set
from cometmq.controller.etcd import EtcdUnavailableError
from cometmq.controller.live_brokers import LiveBrokers
from cometmq.model.address import check_address
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from cometmq.protocol.bodies.route import BrokerMemberGroup
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.controller import (
    CleanBrokerDataRequest,
    ControllerAlterSyncStateSetRequest,
    ControllerAlterSyncStateSetResponse,
    ControllerApplyBrokerIdRequest,
    ControllerApplyBrokerIdResponse,
    ControllerElectMasterRequest,
    ControllerElectMasterResponse,
    ControllerGetMetadataInfoResponse,
    ControllerGetNextBrokerIdRequest,
    ControllerGetNextBrokerIdResponse,
    ControllerGetReplicaInfoRequest,
    ControllerGetReplicaInfoResponse,
    ControllerRegisterBrokerRequest,
    ControllerRegisterBrokerResponse,
)
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

NAMES_MAX = 1000
"""Broker sets in one request for their state."""
_VERIFIED: Final = LogState.VERIFIED
_NAME_CHARS: Final = 32
_INCARNATIONS_MAX: Final = 64
"""Earlier incarnations, and members with theirs, in one request."""


NEEDS = StatedNeeds(
    __name__,
    {
        RequestCode.CONTROLLER_GET_METADATA_INFO: NOTHING,
        RequestCode.CONTROLLER_GET_REPLICA_INFO: NOTHING,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: NOTHING,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: ADMINISTRATOR,
        RequestCode.CONTROLLER_ELECT_MASTER: ADMINISTRATOR,
        RequestCode.CONTROLLER_REGISTER_BROKER: ADMINISTRATOR,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: ADMINISTRATOR,
        RequestCode.CONTROLLER_APPLY_BROKER_ID: ADMINISTRATOR,
        RequestCode.CLEAN_BROKER_DATA: ADMINISTRATOR,
        RequestCode.BROKER_HEARTBEAT: ADMINISTRATOR,
        RequestCode.UPDATE_CONTROLLER_CONFIG: ADMINISTRATOR,
        RequestCode.GET_CONTROLLER_CONFIG: ADMINISTRATOR,
    },
)
"""The rights that requests need with ``aclEnable``; requests that read need a signature only."""


class ControllerHandler:
    """Handles the requests of the controller protocol.

    Args:
        table: the broker sets.
        live: the living brokers.
        elections: elects masters.
        active: which controller is active.
        group: the name of the group of controllers.
    """

    def __init__(
        self,
        table: BrokerSetTable,
        live: LiveBrokers,
        elections: Elections,
        active: ActiveController,
        group: str,
    ) -> None:
        self._table = table
        self._live = live
        self._elections = elections
        self._active = active
        self._group = group
        # A refused broker registers again every second.
        self._registrations = FailureLog(
            log, fails="registration refused", works="registration accepted again", name="broker"
        )

    def routes(self) -> dict[int, RequestHandler]:
        """Return the handlers of all request codes."""
        decided: dict[int, Callable[[Request], Awaitable[Response]]] = {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self.alter_sync_state_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self.elect_master,
            RequestCode.CONTROLLER_REGISTER_BROKER: self.register,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self.replica_info,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self.sync_state_data,
            RequestCode.CLEAN_BROKER_DATA: self.clean,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self.next_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self.apply_id,
        }
        return {code: self._if_active(handler) for code, handler in decided.items()} | {
            RequestCode.CONTROLLER_GET_METADATA_INFO: self.metadata,
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
        }

    def _if_active(self, handler: Callable[[Request], Awaitable[Response]]) -> RequestHandler:
        async def handle(request: Request) -> Response:
            if not self._active.is_active:
                return Response(
                    ResponseCode.CONTROLLER_NOT_LEADER, "this controller is not the active one"
                )
            try:
                return await handler(request)
            except EtcdUnavailableError as error:
                return Response(
                    ResponseCode.CONTROLLER_NOT_LEADER,
                    f"etcd gives no response, the outcome of this request is unknown: {error}",
                )

        return handle

    def heartbeat(self, request: Request) -> Response:
        """BROKER_HEARTBEAT (904)."""
        header = request.header(BrokerHeartbeatRequest)
        _check_address(header.broker_addr)
        self._live.heartbeat(header, request.connection)
        return Response(remark="Heart beat success")

    def metadata(self, _request: Request) -> Response:
        """CONTROLLER_GET_METADATA_INFO (1005)."""
        leader = self._active.active
        return Response(
            header=ControllerGetMetadataInfoResponse(
                group=self._group,
                controller_leader_id=leader.id if leader is not None else None,
                controller_leader_address=leader.address if leader is not None else None,
                is_leader=self._active.is_active,
                peers="".join(f"{one.id}:{one.address};" for one in self._active.members),
            )
        )

    async def next_id(self, request: Request) -> Response:
        """CONTROLLER_GET_NEXT_BROKER_ID (1012)."""
        header = request.header(ControllerGetNextBrokerIdRequest)
        known = await self._table.get(header.broker_name)
        return Response(
            header=ControllerGetNextBrokerIdResponse(
                cluster_name=header.cluster_name,
                broker_name=header.broker_name,
                next_broker_id=(known.last_id if known is not None else 0) + 1,
            )
        )

    async def apply_id(self, request: Request) -> Response:
        """CONTROLLER_APPLY_BROKER_ID (1013)."""
        header = request.header(ControllerApplyBrokerIdRequest)
        cluster, name, id_ = header.cluster_name, header.broker_name, header.applied_broker_id

        store_id, new_set_id = _name(header.store_id), _new_name()

        def decide(before: BrokerSet | None) -> tuple[BrokerSet, None]:
            after = apply_id(
                before,
                cluster,
                name,
                id_,
                header.register_check_code,
                store_id=store_id,
                new_set_id=new_set_id,
            )
            return after, None

        result = ControllerApplyBrokerIdResponse(cluster_name=cluster, broker_name=name)
        try:
            await self._table.change(name, decide)
        except ResponseError as refusal:
            return _refused(refusal, result)
        return Response(header=result)

    async def register(self, request: Request) -> Response:
        """CONTROLLER_REGISTER_BROKER (1003)."""
        header = request.header(ControllerRegisterBrokerRequest)
        name, id_, address = header.broker_name, header.broker_id, header.broker_address
        _check_address(address)
        names, set_id, new_set_id = _names_of(header), _name(header.set_id), _new_name()
        subject = f"{name}/{id_}@{address}"
        result = ControllerRegisterBrokerResponse(
            cluster_name=header.cluster_name, broker_name=name
        )

        def decide(before: BrokerSet | None) -> tuple[BrokerSet, BrokerSet]:
            if before is not None:
                _name_set(result, before, header.incarnation)
            after = register_broker(
                before,
                name,
                id_,
                address,
                set_id=set_id,
                new_set_id=new_set_id,
                names=names,
                is_alive=self._live.is_holder_alive,
            )
            return after, after

        try:
            known = await self._table.change(name, decide)
        except ResponseError as refusal:
            self._registrations.failed(subject, refusal)
            return _refused(refusal, result)
        self._registrations.succeeded(subject)
        _name_set(result, known, header.incarnation)
        if known.master_id is not None and self._live.is_master_alive(known):
            _name_master(result, known)
        return Response(header=result, body=sync_state_set(known).encode())

    async def elect_master(self, request: Request) -> Response:
        """CONTROLLER_ELECT_MASTER (1002)."""
        header = request.header(ControllerElectMasterRequest)
        try:
            await self._check_sender(header.broker_name, header.set_id)
            election = await self._elections.elect(
                header.broker_name, asker=header.broker_id, designated=header.designate_elect
            )
        except ResponseError as refusal:
            return _refused(refusal, ControllerElectMasterResponse())
        known, result = election.after, ControllerElectMasterResponse()
        _name_set(result, known, header.incarnation)
        if election.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            return Response(election.code, election.remark, header=result)
        _name_master(result, known)
        body = ElectMasterResponseBody(sync_state_set=list(known.in_sync))
        if election.code == ResponseCode.SUCCESS:
            body.broker_member_group = BrokerMemberGroup(
                cluster=known.cluster,
                broker_name=known.name,
                broker_addrs={id_: one.address for id_, one in sorted(known.replicas.items())},
            )
        return Response(election.code, election.remark, header=result, body=body.encode())

    async def replica_info(self, request: Request) -> Response:
        """CONTROLLER_GET_REPLICA_INFO (1004)."""
        header = request.header(ControllerGetReplicaInfoRequest)
        known = await self._table.get(header.broker_name)
        result = ControllerGetReplicaInfoResponse()
        if known is not None:
            _name_set(result, known, header.incarnation)
        if known is None or not _is_holder(known, header.broker_id, header.incarnation):
            return Response(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                UNKNOWN if known is None else "this process does not hold its id: register",
                header=result,
            )
        result.master_broker_id = known.master_id
        result.master_address = known.master_address
        result.master_epoch = known.master_epoch
        return Response(header=result, body=sync_state_set(known).encode())

    async def _check_sender(self, name: str, set_id: str | None) -> None:
        """Refuse a broker of another set.

        Raises:
            ResponseError: see `check_set`.
        """
        known = await self._table.get(name) if set_id else None
        if known is not None:
            check_set(known, set_id or "")

    async def alter_sync_state_set(self, request: Request) -> Response:
        """CONTROLLER_ALTER_SYNC_STATE_SET (1001)."""
        header = request.header(ControllerAlterSyncStateSetRequest)
        members = SyncStateSet.decode(request.body)
        name = header.broker_name
        wanted = InSyncRequest(
            wanted=members.sync_state_set,
            master_id=header.master_broker_id,
            master_epoch=header.master_epoch,
            in_sync_epoch=members.sync_state_set_epoch,
            renews=bool(header.renew_sync_state_set),
            known_epoch=header.known_sync_state_set_epoch or 0,
            incarnation=header.incarnation or "",
            compared=_incarnations(header.member_incarnations),
        )
        all_heard = self._live.heard(name)  # before the set is read, which then knows as much

        def decide(before: BrokerSet | None) -> tuple[BrokerSet, tuple[BrokerSet, set[int]]]:
            if before is not None:
                check_set(before, header.set_id or "")
            after = alter_in_sync(
                before,
                wanted,
                is_alive=lambda id_: before is not None and self._live.is_holder_alive(before, id_),
                heard=Heard() if before is None else all_heard.get(before.set_id, Heard()),
            )
            joined = set(after.in_sync) - set(() if before is None else before.in_sync)
            return after, (after, joined)

        try:
            known, joined = await self._table.change(name, decide)
        except ResponseError as refusal:
            return _refused(refusal, ControllerAlterSyncStateSetResponse())
        self._live.joined(known, joined)
        return Response(
            header=ControllerAlterSyncStateSetResponse(
                new_sync_state_set_epoch=known.in_sync_epoch,
                set_id=known.set_id if header.incarnation and known.set_id else None,
            ),
            body=sync_state_set(known).encode(),
        )

    async def sync_state_data(self, request: Request) -> Response:
        """CONTROLLER_GET_SYNC_STATE_DATA (1006)."""
        names = _names(request.body)
        infos = {}
        for name in names:
            known = await self._table.get(name)
            if known is not None:
                infos[name] = self._replicas_info(known)
        return Response(body=BrokerReplicasInfo(replicas_info_table=infos).encode())

    def _replicas_info(self, known: BrokerSet) -> ReplicasInfo:
        replicas = {
            id_: ReplicaIdentity(
                broker_name=known.name,
                broker_id=id_,
                broker_address=replica.address,
                alive=self._live.is_holder_alive(known, id_),
                log_state=None if replica.log_state is _VERIFIED else replica.log_state.value,
            )
            for id_, replica in sorted(known.replicas.items())
        }
        return ReplicasInfo(
            master_broker_id=known.master_id,
            master_address=known.master_address,
            master_epoch=known.master_epoch,
            sync_state_set_epoch=known.in_sync_epoch,
            in_sync_replicas=[one for id_, one in replicas.items() if id_ in known.in_sync],
            not_in_sync_replicas=[one for id_, one in replicas.items() if id_ not in known.in_sync],
        )

    async def clean(self, request: Request) -> Response:
        """CLEAN_BROKER_DATA (1011)."""
        header = request.header(CleanBrokerDataRequest)
        name, ids = header.broker_name, _ids(header.broker_controller_ids_to_clean)

        def decide(before: BrokerSet | None) -> tuple[BrokerSet | None, None]:
            after = clean(
                before,
                name,
                ids,
                living_too=header.is_clean_living_broker,
                is_alive=lambda id_: before is not None and self._live.is_holder_alive(before, id_),
            )
            return after, None

        await self._table.change(name, decide)
        return Response()


def _name_master(
    result: ControllerRegisterBrokerResponse | ControllerElectMasterResponse, known: BrokerSet
) -> None:
    result.master_broker_id = known.master_id
    result.master_address = known.master_address
    result.master_epoch = known.master_epoch
    result.sync_state_set_epoch = known.in_sync_epoch


def _name_set(
    result: ControllerRegisterBrokerResponse
    | ControllerElectMasterResponse
    | ControllerGetReplicaInfoResponse,
    known: BrokerSet,
    incarnation: str | None,
) -> None:
    """Say which set and which process of the master it is, to a broker that names its process."""
    if incarnation:
        result.set_id = known.set_id or None
        result.master_incarnation = known.master_incarnation or None


def _is_holder(known: BrokerSet, id_: int | None, incarnation: str | None) -> bool:
    """Return whether a process holds its id, as far as it says which."""
    if id_ is None or not incarnation:
        return True
    replica = known.replicas.get(id_)
    return replica is not None and replica.incarnation == incarnation


def _new_name() -> str:
    return secrets.token_hex(_NAME_CHARS // 2)


def _name(text: str | None) -> str:
    """Return the name of a set, a store or a process; empty for none.

    Raises:
        ResponseError: 2005; it is not one.
    """
    name = text or ""
    if name and (len(name) != _NAME_CHARS or name.strip("0123456789abcdef")):
        raise ResponseError(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"the name is {name[:40]!r}, expected {_NAME_CHARS} hexadecimal digits",
        )
    return name


def _names_of(header: ControllerRegisterBrokerRequest) -> Names | None:
    if not header.incarnation or not header.store_id:
        return None
    earlier = (header.earlier_incarnations or "").split(";")[:_INCARNATIONS_MAX]
    return Names(
        _name(header.store_id),
        _name(header.incarnation),
        tuple(_name(one) for one in earlier if one),
        bool(header.stopped_cleanly),
    )


def _incarnations(text: str | None) -> dict[int, str]:
    """Return the processes of members."""
    found: dict[int, str] = {}
    for part in (text or "").split(";")[:_INCARNATIONS_MAX]:
        id_text, _, incarnation = part.partition(":")
        if id_text.isascii() and id_text.isdigit():
            found[int(id_text[:19])] = _name(incarnation)
    return found


def _check_address(address: str) -> None:
    """Refuse what is no address: other brokers are given it, and notifications go there."""
    try:
        check_address(address)
    except InvalidNameError as problem:
        raise ResponseError(ResponseCode.CONTROLLER_INVALID_REQUEST, str(problem)) from None


def _refused(refusal: ResponseError, header: Header) -> Response:
    return Response(refusal.code, refusal.remark, header=header)


def _names(body: bytes) -> list[str]:
    try:
        found = fastjson.loads(body)
    except fastjson.FastJsonError:
        found = None
    if isinstance(found, list) and len(found) <= NAMES_MAX:
        names = [name for name in found if isinstance(name, str)]
        if len(names) == len(found):
            return names
    raise ResponseError(
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        f"the body is {body[:80]!r}, expected a list of at most {NAMES_MAX} broker names",
    )


def _ids(text: str | None) -> set[int] | None:
    if text is None or not text.strip():
        return None
    try:
        return {int(part) for part in text.split(";") if part.strip()}
    except ValueError:
        raise ResponseError(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"brokerControllerIdsToClean={text[:80]}, expected numbers separated by semicolons",
        ) from None
