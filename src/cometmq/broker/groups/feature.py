"""The consumer groups, and the requests for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature

if TYPE_CHECKING:
    from cometmq.broker.groups.handler import GroupHandler
    from cometmq.broker.pop.feature import PopFeature


class GroupsFeature(BrokerFeature):
    """Keeps the settings of consumer groups.

    Args:
        core: of the broker.
        pop: holds pops of groups that are deleted.
    """

    def __init__(self, core: Core, pop: PopFeature) -> None:
        super().__init__(core)
        self._pop = pop

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers that create, change, show and delete groups."""

        @Deferred
        def groups() -> GroupHandler:
            from cometmq.broker.groups.handler import GroupHandler

            return GroupHandler(self._core, self._pop.forget_group)

        return Feature(
            {
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.exclusive(lambda h: h.put),
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.exclusive(
                    lambda h: h.put_list
                ),
                RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.exclusive(lambda h: h.delete),
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.handler(lambda h: h.show),
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.exclusive(
                    lambda h: h.show_all
                ),
                RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.exclusive(lambda h: h.forbid),
            }
        )

    async def close(self) -> None:
        """Write what is not in the file yet."""
        await self._core.groups.close()
