"""Request handlers for consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.groups.handler import GroupHandler


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers that create, change, show and delete groups."""

    def make() -> GroupHandler:
        from cometmq.broker.groups.handler import GroupHandler

        return GroupHandler(
            parts.groups,
            parts.role,
            forget_offsets=parts.offsets.forget_group,
            forget_statistics=parts.stats.forget_group,
            created=parts.timings.groups,
        )

    groups = Deferred(make)
    return Feature(
        {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: exclusive(
                groups.handler(lambda h: h.put)
            ),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: exclusive(
                groups.handler(lambda h: h.put_list)
            ),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: exclusive(groups.handler(lambda h: h.delete)),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.handler(lambda h: h.show),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: exclusive(
                groups.handler(lambda h: h.show_all)
            ),
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: exclusive(
                groups.handler(lambda h: h.forbid)
            ),
        }
    )
