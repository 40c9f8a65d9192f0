"""Request handlers for consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.groups.handler import GroupHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers that create, change, show and delete groups."""
    groups = GroupHandler(
        parts.groups,
        parts.role,
        forget_offsets=parts.offsets.forget_group,
        forget_statistics=parts.stats.forget_group,
    )
    return Feature(
        {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: exclusive(groups.put),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: exclusive(groups.put_list),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: exclusive(groups.delete),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.show,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: exclusive(groups.show_all),
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: exclusive(groups.forbid),
        }
    )
