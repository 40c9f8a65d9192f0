"""The rights that requests about accounts, users and policies need.

Those about users are refused under plain access control anyway: there are no users then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.access.needs import Action
from cometmq.access.rights import ADMINISTRATION, Rights, on_cluster
from cometmq.protocol.codes import RequestCode

_LOOK: Final = Rights(plain=ADMINISTRATION, users=on_cluster(Action.GET))
_CHANGE: Final = Rights(plain=ADMINISTRATION, users=on_cluster(Action.UPDATE))

RIGHTS: Final[Mapping[int, Rights]] = {
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _LOOK,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: _LOOK,
    RequestCode.AUTH_GET_USER: _LOOK,
    RequestCode.AUTH_LIST_USER: _LOOK,
    RequestCode.AUTH_GET_ACL: _LOOK,
    RequestCode.AUTH_LIST_ACL: _LOOK,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _CHANGE,
    RequestCode.DELETE_ACL_CONFIG: _CHANGE,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _CHANGE,
    RequestCode.AUTH_CREATE_USER: _CHANGE,
    RequestCode.AUTH_UPDATE_USER: _CHANGE,
    RequestCode.AUTH_DELETE_USER: _CHANGE,
    RequestCode.AUTH_CREATE_ACL: _CHANGE,
    RequestCode.AUTH_UPDATE_ACL: _CHANGE,
    RequestCode.AUTH_DELETE_ACL: _CHANGE,
}
