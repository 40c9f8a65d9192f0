"""One struct for each request and response header, by family of requests.

A header is named as RocketMQ names the request, in CamelCase, with Request or Response at its end.

A family that a server at rest does not need is loaded with the first of its names.
"""

from typing import TYPE_CHECKING

from cometmq.protocol.families import loader
from cometmq.protocol.headers.base import *
from cometmq.protocol.headers.consumer import *
from cometmq.protocol.headers.namesrv import *
from cometmq.protocol.headers.offset import *
from cometmq.protocol.headers.pull import *
from cometmq.protocol.headers.send import *

FAMILIES = {
    "transaction": (
        "EndTransactionRequest",
        "CheckTransactionStateRequest",
        "ResumeCheckHalfMessageRequest",
    ),
    "query": (
        "QueryMessageRequest",
        "QueryMessageResponse",
        "ViewMessageByIdRequest",
    ),
    "pop": (
        "PopMessageRequest",
        "PopMessageResponse",
        "AckMessageRequest",
        "ChangeMessageInvisibletimeRequest",
        "ChangeMessageInvisibletimeResponse",
        "NotificationRequest",
        "NotificationResponse",
    ),
    "topic": (
        "UpdateAndCreateTopicRequest",
        "DeleteTopicInBrokerRequest",
        "GetTopicConfigRequest",
        "GetTopicStatsInfoRequest",
        "QueryTopicConsumeByWhoRequest",
        "QueryConsumeTimeSpanRequest",
        "QueryConsumeQueueRequest",
    ),
    "table_page": (
        "GetAllTopicConfigRequest",
        "GetAllTopicConfigResponse",
        "GetAllSubscriptionGroupRequest",
        "GetAllSubscriptionGroupResponse",
        "GetAllConsumerOffsetRequest",
        "GetAllConsumerOffsetResponse",
    ),
    "group": (
        "GetSubscriptionGroupConfigRequest",
        "DeleteSubscriptionGroupRequest",
        "UpdateAndGetGroupForbiddenRequest",
        "GetConsumerConnectionListRequest",
        "GetProducerConnectionListRequest",
        "GetConsumeStatsRequest",
        "GetBrokerConsumeStatsRequest",
        "QueryTopicsByConsumerRequest",
        "QuerySubscriptionByConsumerRequest",
    ),
    "broker_admin": (
        "GetBrokerConfigResponse",
        "GetBrokerRuntimeInfoRequest",
        "ViewBrokerStatsDataRequest",
        "SetCommitlogReadModeRequest",
        "UpdateAndCreateAclConfigRequest",
        "DeleteAclConfigRequest",
        "GetBrokerClusterAclInfoResponse",
        "UpdateGlobalWhiteAddrsConfigRequest",
        "ExchangeBrokerHaInfoRequest",
        "ExchangeBrokerHaInfoResponse",
        "ResetMasterFlushOffsetRequest",
        "NotifyBrokerRoleChangedRequest",
        "AddBrokerRequest",
        "RemoveBrokerRequest",
    ),
    "auth": (
        "AuthCreateUserRequest",
        "AuthUpdateUserRequest",
        "AuthDeleteUserRequest",
        "AuthGetUserRequest",
        "AuthListUserRequest",
        "AuthCreateAclRequest",
        "AuthUpdateAclRequest",
        "AuthDeleteAclRequest",
        "AuthGetAclRequest",
        "AuthListAclRequest",
    ),
    "controller": (
        "CleanBrokerDataRequest",
        "ControllerAlterSyncStateSetRequest",
        "ControllerAlterSyncStateSetResponse",
        "ControllerApplyBrokerIdRequest",
        "ControllerApplyBrokerIdResponse",
        "ControllerElectMasterRequest",
        "ControllerElectMasterResponse",
        "ControllerGetMetadataInfoResponse",
        "ControllerGetNextBrokerIdRequest",
        "ControllerGetNextBrokerIdResponse",
        "ControllerGetReplicaInfoRequest",
        "ControllerGetReplicaInfoResponse",
        "ControllerRegisterBrokerRequest",
        "ControllerRegisterBrokerResponse",
    ),
}
"""The names of the families that are loaded later."""

if TYPE_CHECKING:
    from cometmq.protocol.headers.auth import *
    from cometmq.protocol.headers.broker_admin import *
    from cometmq.protocol.headers.controller import *
    from cometmq.protocol.headers.group import *
    from cometmq.protocol.headers.pop import *
    from cometmq.protocol.headers.query import *
    from cometmq.protocol.headers.table_page import *
    from cometmq.protocol.headers.topic import *
    from cometmq.protocol.headers.transaction import *
else:
    __getattr__ = loader(__name__, FAMILIES)
