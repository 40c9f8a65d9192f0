"""Lets the response to a stored record wait for the disk, slaves, both or neither.

The rule stands here once, for sends, messages sent back, decisions about transactions and replies:
the response has code 0 only if the record is as durable as the settings promise for a send.
`status_of` says what the response has otherwise; the record is stored all the same.

Both waits run side by side, so that the response takes as long as the slower one. If the disk
failed, that is the outcome; else the outcome of the slaves has precedence, as in RocketMQ.

Source: CommitLog.handleDiskFlushAndHA, RocketMQ 5.3, which takes decisions about transactions for
durable that no slave has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cometmq.broker.durability.acknowledgements import SUCCESS, Acknowledgements
from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.refusals import STORED
from cometmq.remoting import Request, Response
from cometmq.remoting.slow_requests import spent_on

if TYPE_CHECKING:
    from cometmq.broker.durability.group_commit import GroupCommit

NO_MASTER_ANY_MORE = (
    f"{STORED} this broker is not the master any more, and the new one may lack the message:"
    " send it again"
)
"""With SERVICE_NOT_AVAILABLE, after which clients send to another broker."""

Outcome = Callable[[int, StoreError | None], None]
"""Called once: with a response code, and with the error of the sync, if any."""


def status_of(code: int, error: StoreError | None) -> tuple[int, str | None]:
    """Return code and remark of the response to a stored record with an outcome.

    Args:
        code: the response code of the wait.
        error: the error of the sync, if any.
    """
    if error is not None:
        return (
            int(ResponseCode.SERVICE_NOT_AVAILABLE),
            f"{STORED} not on disk, and nothing further will be: {error}",
        )
    if code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return code, NO_MASTER_ANY_MORE
    return code, None if code == SUCCESS else f"{STORED} {ResponseCode(code).name}"


class DurabilityWait:
    """Waits for all that the response to a stored message depends on.

    Args:
        commit: syncs to the disk; None with asynchronous flush.
        slaves: the slaves of this broker; None in programs without replication.
    """

    def __init__(self, commit: GroupCommit | None, slaves: Acknowledgements | None = None) -> None:
        self._commit = commit
        self._slaves = slaves
        self.last_wait = "flush"
        """The last wait of the outcome that is reported now: flush or slaves."""

    def add_slaves(self, slaves: Acknowledgements) -> None:
        """Let responses wait for slaves, too."""
        self._slaves = slaves

    @property
    def refusal(self) -> ResponseError | None:
        """Why no message may be stored now; None if messages may be."""
        return None if self._slaves is None else self._slaves.refusal

    @property
    def may_be_replaced(self) -> bool:
        """Whether another master may have been elected without this broker knowing it."""
        return self._slaves is not None and self._slaves.may_be_replaced()

    def waits(self) -> bool:
        """Return whether a response waits for anything."""
        slaves = self._slaves
        return self._commit is not None or (slaves is not None and slaves.are_needed())

    def lacks_slaves(self, log_end: int) -> bool:
        """Return whether the next record of a log would wait for slaves in vain."""
        slaves = self._slaves
        return slaves is not None and slaves.are_needed() and slaves.are_too_few(log_end + 1)

    def respond(
        self, request: Request, log_offset_end: int, response: Response | None = None
    ) -> Response | None:
        """Respond when all bytes before an offset are confirmed, or cannot be.

        Args:
            request: the request that has stored them.
            log_offset_end: the end of what it has stored.
            response: the response if they are confirmed; code 0 if it is left out.

        Returns:
            The response if there is nothing to wait for; None if it follows later.
        """
        response = response or Response()
        if not self.waits():
            return response

        def on_outcome(code: int, error: StoreError | None) -> None:
            if error is not None or code != SUCCESS:
                response.code, response.remark = status_of(code, error)
            request.reply(response)

        self.wait(log_offset_end, on_outcome)
        return None

    def respond_to_all(self, requests: Iterable[Request], log_offset_end: int) -> None:
        """Respond to requests with code 0 when all bytes before an offset are confirmed.

        If they cannot be, the response is that of `status_of`.
        """

        def on_outcome(code: int, error: StoreError | None) -> None:
            response = Response(*status_of(code, error))
            for request in requests:
                request.reply(response)

        self.wait(log_offset_end, on_outcome)

    def begin(self) -> None:
        """Begin the sync of a message whose response does not wait for it."""
        if self._commit is not None:
            self._commit.request_sync()

    def wait(self, log_offset_end: int, on_outcome: Outcome) -> None:
        """Call ``on_outcome`` when all bytes before an offset are confirmed, or cannot be."""
        commit, slaves = self._commit, self._slaves
        if slaves is None or not slaves.are_needed():
            if commit is None:
                on_outcome(SUCCESS, None)
            else:
                commit.wait(
                    log_offset_end,
                    lambda synced, error: self.report("flush", on_outcome, _code_of(synced), error),
                )
        elif commit is None:
            slaves.wait(log_offset_end, lambda code: self.report("slaves", on_outcome, code, None))
        else:
            both = _Both(self, on_outcome)
            commit.wait(log_offset_end, both.disk_ended)
            slaves.wait(log_offset_end, both.slaves_ended)

    def report(
        self, last_wait: str, on_outcome: Outcome, code: int, error: StoreError | None
    ) -> None:
        """Report an outcome, and what it has waited for in the end."""
        self.last_wait = last_wait
        on_outcome(code, error)

    async def confirmed_by(
        self, log_offset_end: int, *, asks_slaves: bool = True
    ) -> tuple[bool, bool]:
        """Wait for an offset; return whether the disk has it, and whether slaves confirm it.

        Each is true if it is not needed.

        Args:
            log_offset_end: all bytes before it are to be confirmed.
            asks_slaves: whether to wait for slaves at all.
        """
        commit, slaves = self._commit, self._slaves
        replicated: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def slaves_ended(code: int) -> None:
            if not replicated.done():
                replicated.set_result(code == SUCCESS)

        if asks_slaves and slaves is not None and slaves.are_needed():
            slaves.wait(log_offset_end, slaves_ended)
        else:
            slaves_ended(SUCCESS)
        with spent_on("flush"):
            is_synced = commit is None or await commit.sync_error(log_offset_end) is None
        with spent_on("slaves"):
            return is_synced, await replicated


class _Both:
    """The outcomes of the disk and of the slaves, until both are there."""

    def __init__(self, durability: DurabilityWait, on_outcome: Outcome) -> None:
        self._durability = durability
        self._on_outcome = on_outcome
        self._disk: int | None = None
        self._slaves: int | None = None
        self._error: StoreError | None = None

    def disk_ended(self, synced: bool, error: StoreError | None) -> None:
        self._disk, self._error = _code_of(synced), error
        self._end("flush")

    def slaves_ended(self, code: int) -> None:
        self._slaves = code
        self._end("slaves")

    def _end(self, last: str) -> None:
        if self._disk is not None and self._slaves is not None:
            code = self._disk if self._slaves == SUCCESS else self._slaves
            self._durability.report(last, self._on_outcome, code, self._error)


def _code_of(synced: bool) -> int:
    return SUCCESS if synced else int(ResponseCode.FLUSH_DISK_TIMEOUT)
