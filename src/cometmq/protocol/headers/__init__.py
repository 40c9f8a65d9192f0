"""One struct for each request and response header, by family of requests.

A header is named as RocketMQ names the request, in CamelCase, with Request or Response at its end.
``REQUEST_HEADERS`` and ``RESPONSE_HEADERS`` lead from a request code to its headers.

A family is loaded with the first of its names that is imported: a server at rest needs few.
"""

from typing import TYPE_CHECKING

from cometmq.protocol.families import loader

FAMILIES = {
    "base": (
        "Header",
        "RpcHeader",
        "TopicHeader",
        "decode_fields",
        "encode_fields",
    ),
    "send": (
        "SendMessageRequest",
        "SendMessageV2Request",
        "SendMessageResponse",
        "PushReplyMessageToClientRequest",
        "RecallMessageRequest",
        "RecallMessageResponse",
    ),
    "transaction": (
        "EndTransactionRequest",
        "CheckTransactionStateRequest",
        "ResumeCheckHalfMessageRequest",
    ),
    "pull": (
        "PullMessageRequest",
        "PullMessageResponse",
    ),
    "offset": (
        "QueryConsumerOffsetRequest",
        "QueryConsumerOffsetResponse",
        "UpdateConsumerOffsetRequest",
        "SearchOffsetByTimestampRequest",
        "SearchOffsetByTimestampResponse",
        "GetMaxOffsetRequest",
        "GetMaxOffsetResponse",
        "GetMinOffsetRequest",
        "GetMinOffsetResponse",
        "GetEarliestMsgStoretimeRequest",
        "GetEarliestMsgStoretimeResponse",
        "QueryCorrectionOffsetRequest",
        "CloneGroupOffsetRequest",
        "InvokeBrokerToResetOffsetRequest",
    ),
    "query": (
        "QueryMessageRequest",
        "QueryMessageResponse",
        "ViewMessageByIdRequest",
    ),
    "consumer": (
        "HeartbeatRequest",
        "HeartbeatResponse",
        "UnregisterClientRequest",
        "ConsumerSendMsgBackRequest",
        "GetConsumerListByGroupRequest",
        "NotifyConsumerIdsChangedRequest",
        "LockBatchMqRequest",
        "UnlockBatchMqRequest",
        "InvokeBrokerToGetConsumerStatusRequest",
        "GetConsumerRunningInfoRequest",
        "ConsumeMessageDirectlyRequest",
        "RegisterFilterServerRequest",
        "RegisterFilterServerResponse",
        "RegisterMessageFilterClassRequest",
    ),
    "pop": (
        "PopMessageRequest",
        "PopMessageResponse",
        "AckMessageRequest",
        "ChangeMessageInvisibletimeRequest",
        "ChangeMessageInvisibletimeResponse",
        "NotificationRequest",
        "NotificationResponse",
        "PollingInfoRequest",
        "PollingInfoResponse",
        "PeekMessageRequest",
    ),
    "topic": (
        "UpdateAndCreateTopicRequest",
        "UpdateAndCreateTopicListRequest",
        "DeleteTopicInBrokerRequest",
        "GetTopicConfigRequest",
        "GetTopicStatsInfoRequest",
        "QueryTopicConsumeByWhoRequest",
        "QueryConsumeTimeSpanRequest",
        "QueryConsumeQueueRequest",
        "CheckRocksdbCqWriteProgressRequest",
        "ExportRocksdbConfigToJsonRequest",
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
        "GetBrokerEpochCacheRequest",
    ),
    "namesrv": (
        "PutKvConfigRequest",
        "GetKvConfigRequest",
        "GetKvConfigResponse",
        "DeleteKvConfigRequest",
        "GetKvlistByNamespaceRequest",
        "RegisterBrokerRequest",
        "RegisterBrokerResponse",
        "UnregisterBrokerRequest",
        "QueryDataVersionRequest",
        "QueryDataVersionResponse",
        "GetRouteinfoByTopicRequest",
        "WipeWritePermOfBrokerRequest",
        "WipeWritePermOfBrokerResponse",
        "AddWritePermOfBrokerRequest",
        "AddWritePermOfBrokerResponse",
        "DeleteTopicInNamesrvRequest",
        "RegisterTopicInNamesrvRequest",
        "GetTopicsByClusterRequest",
        "GetBrokerMemberGroupRequest",
        "BrokerHeartbeatRequest",
        "NotifyMinBrokerIdChangeRequest",
    ),
    "table": (
        "REQUEST_HEADERS",
        "RESPONSE_HEADERS",
    ),
}
"""The names of each family."""

if TYPE_CHECKING:
    from cometmq.protocol.headers.auth import *
    from cometmq.protocol.headers.base import *
    from cometmq.protocol.headers.broker_admin import *
    from cometmq.protocol.headers.consumer import *
    from cometmq.protocol.headers.controller import *
    from cometmq.protocol.headers.group import *
    from cometmq.protocol.headers.namesrv import *
    from cometmq.protocol.headers.offset import *
    from cometmq.protocol.headers.pop import *
    from cometmq.protocol.headers.pull import *
    from cometmq.protocol.headers.query import *
    from cometmq.protocol.headers.send import *
    from cometmq.protocol.headers.table import *
    from cometmq.protocol.headers.table_page import *
    from cometmq.protocol.headers.topic import *
    from cometmq.protocol.headers.transaction import *
else:
    __getattr__ = loader(__name__, FAMILIES)
