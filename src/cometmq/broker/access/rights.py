"""The rights that requests about accounts, users and policies need.

Those about users are refused under plain access control anyway: there are no users then.
"""

from __future__ import annotations

from typing import Final

from cometmq.access.rights import CHANGE, LOOK
from cometmq.protocol.codes import RequestCode

RIGHTS: Final = {
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: LOOK,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: LOOK,
    RequestCode.AUTH_GET_USER: LOOK,
    RequestCode.AUTH_LIST_USER: LOOK,
    RequestCode.AUTH_GET_ACL: LOOK,
    RequestCode.AUTH_LIST_ACL: LOOK,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: CHANGE,
    RequestCode.DELETE_ACL_CONFIG: CHANGE,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: CHANGE,
    RequestCode.AUTH_CREATE_USER: CHANGE,
    RequestCode.AUTH_UPDATE_USER: CHANGE,
    RequestCode.AUTH_DELETE_USER: CHANGE,
    RequestCode.AUTH_CREATE_ACL: CHANGE,
    RequestCode.AUTH_UPDATE_ACL: CHANGE,
    RequestCode.AUTH_DELETE_ACL: CHANGE,
}
