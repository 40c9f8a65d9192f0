"""Controllers, and the broker sets that they elect masters of.

Source: DefaultMQAdminExtImpl, RocketMQ 5.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cometmq.client.admin.servers import AdminCore
from cometmq.client.errors import ClientError
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.controller import BrokerReplicasInfo, EpochEntryCache
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.controller import (
    CleanBrokerDataRequest,
    ControllerElectMasterRequest,
    ControllerGetMetadataInfoResponse,
)


class Controllers(AdminCore):
    """Calls about controllers."""

    async def controller_metadata(self, address: str) -> ControllerGetMetadataInfoResponse:
        """Return the leader and the members of the controllers, as one of them knows them."""
        response = await self.call(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        return response.header(ControllerGetMetadataInfoResponse)

    async def controller_leader(self, address: str) -> str:
        """Return the address of the active controller, as another one knows it.

        Raises:
            ClientError: it knows none.
        """
        leader = (await self.controller_metadata(address)).controller_leader_address
        if not leader:
            raise ClientError(
                f"controller {address} knows no leader: is a majority of controllers running?"
            )
        return leader

    async def sync_state(self, leader: str, brokers: Sequence[str]) -> BrokerReplicasInfo:
        """Return the masters and the in-sync replicas of broker sets, by the names of the sets."""
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        response = await self.call(leader, code, body=msgspec.json.encode(list(brokers)))
        return BrokerReplicasInfo.decode(response.body)

    async def broker_epochs(self, address: str) -> EpochEntryCache:
        """Return the epochs of a broker's log."""
        response = await self.call(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        return EpochEntryCache.decode(response.body)

    async def elect_master(self, leader: str, cluster: str, broker: str, broker_id: int) -> Command:
        """Let the active controller elect a broker of a set as its master.

        Returns:
            The response, whose header is a ``ControllerElectMasterResponse``.
        """
        header = ControllerElectMasterRequest(
            cluster_name=cluster,
            broker_name=broker,
            broker_id=broker_id,
            designate_elect=True,
            invoke_time=now_ms(),
        )
        return await self.call(leader, RequestCode.CONTROLLER_ELECT_MASTER, header)

    async def forget_brokers(
        self,
        leader: str,
        broker: str,
        *,
        cluster: str | None = None,
        broker_ids: Sequence[int] = (),
        living: bool = False,
    ) -> None:
        """Remove brokers of a set from the controllers.

        Args:
            leader: the active controller.
            broker: the name of the set.
            cluster: the cluster of the set; needed unless ``living``.
            broker_ids: the brokers' numbers at the controllers; all if empty.
            living: also the brokers that are alive.
        """
        header = CleanBrokerDataRequest(
            cluster_name=cluster,
            broker_name=broker,
            broker_controller_ids_to_clean=";".join(map(str, broker_ids)) or None,
            is_clean_living_broker=living,
            invoke_time=now_ms(),
        )
        await self.call(leader, RequestCode.CLEAN_BROKER_DATA, header)

    async def controller_config(self, address: str) -> dict[str, str]:
        """Return all settings of a controller."""
        return await self._config_of(address, RequestCode.GET_CONTROLLER_CONFIG)

    async def set_controller_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running controller."""
        await self._change_config(address, RequestCode.UPDATE_CONTROLLER_CONFIG, changes)
