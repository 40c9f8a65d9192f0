"""Which refusals no retry cures, by the words of RocketMQ 4.9 and 5.3, and of CometMQ."""

from __future__ import annotations

import pytest

from cometmq.model.errors import RemotingError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.refusals import is_account_refused, permanent_refusal

ERROR, DENIED = ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (
            ERROR,
            "org.apache.rocketmq.acl.common.AclException: Check signature failed for "
            "accessKey=shop, org.apache.rocketmq.acl.plain.PlainPermissionManager.validate",
        ),
        (ERROR, "No accessKey is configured"),
        (ERROR, "No acl config for shop"),
        (ERROR, "No PlainAccessResource for accessKey=shop"),
        (ERROR, "Check signature failed for accessKey=shop"),
        (ERROR, "Need admin permission for request code=17, but accessKey=shop is not"),
        (ERROR, "No default permission for topic:orders"),
        (DENIED, "username cannot be null."),
        (DENIED, "User:shop is not found."),
        (DENIED, "User:shop is disabled."),
        (DENIED, "check signature failed."),
        (DENIED, "User:shop has no permission to access Topic:orders from 10.1.2.3, no matched"),
    ],
)
def test_a_refused_account_is_refused_for_good(code: ResponseCode, remark: str) -> None:
    error = ResponseError(code, remark)

    assert is_account_refused(error)
    assert permanent_refusal(error) is not None


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ERROR, "accurate timer message is not enabled, timerWheelEnable is false"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 200050 not supported"),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group [g] does not exist"),
    ],
)
def test_a_refused_setting_is_refused_for_good_and_needs_no_other_account(
    code: ResponseCode, remark: str
) -> None:
    error = ResponseError(code, remark)

    assert permanent_refusal(error) is not None
    assert not is_account_refused(error)


@pytest.mark.parametrize(
    "error",
    [
        ResponseError(ERROR, "no consumer for this group, g"),
        ResponseError(DENIED, "the broker[10.1.2.3] sending message is forbidden"),
        ResponseError(DENIED, "the topic[orders] pulling message is forbidden"),
        ResponseError(DENIED, "the consumer group[g] is forbidden for topic[orders]"),
        ResponseError(DENIED, "subscription group no permission, g"),
        ResponseError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control"),
        ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now"),
        ResponseError(ResponseCode.TOPIC_NOT_EXIST, "topic[orders] not exist"),
        ResponseError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the subscription not latest"),
        ResponseError(ResponseCode.INVALID_PARAMETER, "queueId[7] is illegal"),
        RemotingError("away"),
        ValueError("No accessKey is configured"),
    ],
    ids=repr,
)
def test_a_refusal_that_may_end_by_itself_is_not_permanent(error: Exception) -> None:
    assert permanent_refusal(error) is None
