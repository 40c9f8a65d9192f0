"""Says which refusals of brokers no retry cures, and which of them are of a stored message.

No retry cures a refusal of the account, or for a right or a setting.

One response code has several meanings, which only the remark tells apart: RocketMQ 4.9 refuses an
account with the code of any failure, and 5.3 with the one of a topic that an administrator closed
for a while.

Source: AclException, PlainAccessValidator, RocketMQ 4.9; AuthenticationPipeline,
AuthorizationPipeline, SendMessageProcessor and PullMessageProcessor, RocketMQ 5.3.
"""

from typing import NamedTuple

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode


class PermanentRefusal(NamedTuple):
    """One kind of refusal that stays until a person changes an account, a right or a setting."""

    code: ResponseCode
    concerns_account: bool
    """Whether another account or right would help; otherwise a setting or another version."""
    marks: tuple[str, ...] = ()
    """The remark contains one of these; empty if every remark counts."""
    unless: tuple[str, ...] = ()
    """The remark contains none of these."""


PERMANENT_REFUSALS = (
    # Plain accounts, RocketMQ 4.9 to 5.3.2. CometMQ has the texts, not the name of the exception.
    PermanentRefusal(
        ResponseCode.SYSTEM_ERROR,
        True,
        (
            "org.apache.rocketmq.acl.",
            "No accessKey is configured",
            "No acl config for",
            "No PlainAccessResource for accessKey",
            "Check signature failed for accessKey",
            "Need admin permission for request code",
            "No default permission for",
        ),
    ),
    # A message with a time, at a broker without timers.
    PermanentRefusal(ResponseCode.SYSTEM_ERROR, False, ("timerWheelEnable is false",)),
    # Users and policies, RocketMQ 5.3. The exceptions are switches for reading and writing, which
    # administrators turn off for a while, of a broker, a topic or a group.
    PermanentRefusal(
        ResponseCode.NO_PERMISSION,
        True,
        unless=("is forbidden", "subscription group no permission"),
    ),
    # The server has another role, or is too old.
    PermanentRefusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, False),
    # The expression of a filter.
    PermanentRefusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, False),
    # The group does not exist, and autoCreateSubscriptionGroup is false.
    PermanentRefusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, False),
)
"""All other refusals may end by themselves. INVALID_PARAMETER and MESSAGE_ILLEGAL are not here:
brokers use them for a queue that is gone, which a client notices at the next route."""


STORED = "stored, but"
"""The remark begins so if the broker has stored the record, and cannot say that it is durable."""


def is_stored(error: BaseException | None) -> bool:
    """Return whether a broker has stored the message that it does not acknowledge."""
    return isinstance(error, ResponseError) and error.remark.startswith(STORED)


def permanent_refusal(error: BaseException | None) -> PermanentRefusal | None:
    """Return the kind of a refusal that no retry cures; None for every other error."""
    if not isinstance(error, ResponseError):
        return None
    for kind in PERMANENT_REFUSALS:
        if kind.code != error.code or (
            kind.marks and not any(mark in error.remark for mark in kind.marks)
        ):
            continue
        if not any(mark in error.remark for mark in kind.unless):
            return kind
    return None


def is_account_refused(error: BaseException) -> bool:
    """Return whether another account, or a right of this one, would let a request pass."""
    kind = permanent_refusal(error)
    return kind is not None and kind.concerns_account
