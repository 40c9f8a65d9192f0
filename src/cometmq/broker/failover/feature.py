"""The role that a controller decides, and the requests for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Request, RequestHandler, Response, Supervisor
from cometmq.remoting.features import Feature, Routes

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.failover.elected_role import ElectedRole
    from cometmq.broker.failover.epochs.replication import EpochReplication
    from cometmq.broker.forwarding import Forwarding

log = logging.getLogger(__name__)

DECISION_S = 10.0
"""How long a start waits for controllers and name servers."""


class Elected(msgspec.Struct, frozen=True):
    """The parts of a broker whose role controllers decide."""

    log: EpochReplication
    """The log with its epochs."""
    role: ElectedRole


def elect(
    core: Core, durability: DurabilityFeature, before_truncation: Callable[[int], object]
) -> Elected | None:
    """Make what a broker has whose role controllers decide; None for any other broker.

    Args:
        core: of the broker.
        durability: syncs the copied log.
        before_truncation: called with the new end of the log before that is truncated.

    Raises:
        ConfigError: the store belongs to a broker of another name or cluster.
        StoreError: a file with epochs or the id cannot be read.
    """
    if not core.role.is_elected:
        return None
    from cometmq.broker.failover.elected_role import elect_role

    return Elected(*elect_role(core, durability.commit, before_truncation))


def forwarding(
    core: Core, access: AccessControl | None, elected: Elected | None
) -> Forwarding | None:
    """Make what forwards requests to the elected master; None without a controller."""
    if elected is None:
        return None
    from cometmq.broker.forwarding import Forwarding

    needs_signature = None if access is None else access.needs_account
    return Forwarding(core.role, core.client, needs_signature, elected.role.decided)


class FailoverFeature(BrokerFeature):
    """Follows the controllers.

    Args:
        core: of the broker.
        elected: the role that they decide; None without a controller.
        register: registers at the name servers, once the role is decided.
    """

    def __init__(
        self,
        core: Core,
        elected: Elected | None,
        register: Callable[[Endpoint], Awaitable[None]],
    ) -> None:
        super().__init__(core)
        self.elected = None if elected is None else elected.role
        self._register = register
        self._tasks = Supervisor("failover")

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers for controllers and operators."""
        epochs: RequestHandler = _no_epochs
        routes: Routes = {}
        if self.elected is not None:
            from cometmq.broker.failover.handler import ElectedHandler

            handler = ElectedHandler(self.elected, self._core.role, self._core.settings)
            epochs = handler.epochs
            routes = {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: handler.role_changed}
        return Feature({RequestCode.GET_BROKER_EPOCH_CACHE: epochs, **routes})

    async def begin(self, endpoint: Endpoint) -> None:
        """Register with the controllers, and with name servers once these have decided the role."""
        elected, role = self.elected, self._core.role
        if elected is None:
            return

        async def register_once_decided() -> None:
            await elected.decided.wait()
            await role.in_force.wait()
            await self._register(endpoint)

        elected.start(endpoint.address)
        registering = self._tasks.spawn(register_once_decided(), "register-elected")
        _, late = await asyncio.wait([registering], timeout=DECISION_S)
        if late:
            log.warning(
                "refusing sends until the role is decided, retrying controllers=%s",
                ";".join(self._core.settings().controller_addr),
            )

    async def end(self) -> None:
        """Register no more."""
        await self._tasks.cancel()

    async def leave(self) -> None:
        """Leave the controllers, which may elect another master."""
        if self.elected is not None:
            await self.elected.stop()


def _no_epochs(_request: Request) -> Response:
    """Refuse GET_BROKER_EPOCH_CACHE (1007) as RocketMQ does without a controller."""
    raise ResponseError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode")
