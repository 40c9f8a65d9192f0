"""Headers of transactions: the end of a half message, and the check by a broker.

Source: EndTransactionRequestHeader and its relatives, RocketMQ 4.9 and 5.3.
"""

from cometmq.protocol.headers.base import Header, Int32, Int64, RpcHeader


class EndTransactionRequest(RpcHeader, kw_only=True):
    """END_TRANSACTION (37): commit or roll back a half message."""

    producer_group: str
    tran_state_table_offset: Int64
    """Queue offset of the half message."""
    commit_log_offset: Int64
    commit_or_rollback: Int32
    """0 unknown, 8 commit, 12 roll back."""
    from_transaction_check: bool | None = False
    msg_id: str = ""
    """Unique id of the message."""
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionStateRequest(RpcHeader, kw_only=True):
    """CHECK_TRANSACTION_STATE (39): a broker checks the state of a transaction at its producer."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    """Unique id of the message."""
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


class ResumeCheckHalfMessageRequest(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323): check a half message again from the start."""

    msg_id: str | None = None
    """Offset message id of the half message."""
    topic: str | None = None
