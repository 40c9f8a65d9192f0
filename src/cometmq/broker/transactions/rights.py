"""The rights that decisions of transactions need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action, Needs
from cometmq.access.rights import (
    ADMINISTRATION,
    Lookups,
    Right,
    Rights,
    field,
    of_message_id,
    of_record,
    topic_if_any,
    with_record,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.transaction import EndTransactionRequest
from cometmq.remoting import Request


def _end(request: Request, lookups: Lookups) -> Needs:
    offset = request.header(EndTransactionRequest).commit_log_offset
    return of_record(lookups.topic_of_record, offset, Action.PUB)


def _end_of_user(request: Request, lookups: Lookups) -> Needs:
    """Return the right on the topic of the message alone.

    The topic of the header is that of the request which the producer responds to: in a check the
    half topic. Without the message, a right on it tells who may learn that there is none.
    """
    header = request.header(EndTransactionRequest)
    record = of_record(lookups.topic_of_half, header.commit_log_offset, Action.PUB)
    if not record.unknown:
        return record
    return with_record(record, topic_if_any(header.topic, Action.PUB))


def _resume(request: Request, lookups: Lookups) -> Needs:
    topic = field(request, "topic")
    if not topic:
        return lookups.of_cluster(Action.UPDATE)
    record = of_message_id(lookups.topic_of_record, field(request, "msgId"), Action.UPDATE)
    return with_record(record, topic_if_any(topic, Action.UPDATE))


RIGHTS: Final = {
    RequestCode.END_TRANSACTION: Rights(plain=Right(_end), users=Right(_end_of_user)),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Rights(plain=ADMINISTRATION, users=Right(_resume)),
}
