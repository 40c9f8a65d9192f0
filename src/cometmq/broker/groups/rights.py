"""The rights that requests about consumer groups need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import ADMINISTRATOR, NOTHING, Action, Needs, group_need, needs_of
from cometmq.access.rights import ADMINISTRATION, READ, SIGNED, Lookups, Right, Rights, on_named
from cometmq.protocol.bodies.group import SubscriptionGroupList, decode_group
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.group import UpdateAndGetGroupForbiddenRequest
from cometmq.remoting import Request

_CREATE_OR_UPDATE: Final = Action.CREATE | Action.UPDATE


def _new_group(request: Request, _: Lookups) -> Needs:
    config = decode_group(request.body)
    return needs_of(group_need(config.group_name, _CREATE_OR_UPDATE))


def _group_list(request: Request, _: Lookups) -> Needs:
    configs = SubscriptionGroupList.decode(request.body).group_config_list
    return needs_of(group_need(config.group_name, _CREATE_OR_UPDATE) for config in configs)


def _forbidden(request: Request, _: Lookups) -> Needs:
    """Without ``readable`` it is a query."""
    header = request.header(UpdateAndGetGroupForbiddenRequest)
    return NOTHING if header.readable is None else ADMINISTRATOR


RIGHTS: Final = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Rights(
        plain=ADMINISTRATION, users=Right(_new_group, in_body=True)
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Rights(
        plain=ADMINISTRATION, users=Right(_group_list, in_body=True)
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Rights(
        plain=ADMINISTRATION, users=on_named(Action.DELETE, group="groupName")
    ),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Rights(
        plain=SIGNED, users=on_named(Action.GET, group="group")
    ),
    # What slaves and controllers read.
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: READ,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: Rights(
        plain=Right(_forbidden), users=on_named(Action.UPDATE, topic="topic", group="group")
    ),
}
