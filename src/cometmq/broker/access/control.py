"""Access control of a broker: each request passes the gate before its handler runs."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from cometmq.access.certificates import with_certificates
from cometmq.access.fast_check import FastCheck
from cometmq.access.gate import Action, Gate
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.access.plain.needs import IN_BODY, PlainNeeds
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.prerequisites import PrerequisiteError, after_prerequisites
from cometmq.model import property_names as names
from cometmq.model.errors import CometError
from cometmq.model.topic import SEND_FORBIDDEN_TOPICS
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import split_record
from cometmq.remoting import Request, RequestHandler, Response, TlsSettings
from cometmq.remoting.slices import off_loop
from cometmq.store import MessageStore

LARGE_BYTES_MIN: Final = 16 * 1024
"""Requests with larger bodies are checked in a thread, if the body says what they need."""


class AccessControl:
    """Checks the requests of a broker.

    Args:
        accounts: the accounts.
        store: contains the messages that some requests name by their offsets.
        cold_reads: reads what is on the disk only.
        cluster: the name of the cluster.
        tls: whether certificates name accounts.
    """

    def __init__(
        self,
        accounts: PlainAccounts,
        store: MessageStore,
        cold_reads: ColdReads,
        *,
        cluster: str,
        tls: TlsSettings | None = None,
    ) -> None:
        self.accounts = accounts
        self._senders = with_certificates(accounts, tls or TlsSettings())
        self._gate = Gate(self._senders, ResponseCode.SYSTEM_ERROR)
        self._needs = PlainNeeds(cluster, self._topic_of_record)
        self._store = store
        self._cold_reads = cold_reads
        self.settle_log = self._gate.settle_log

    def for_sends(self) -> FastCheck:
        """Return the check of a fast path of sends."""
        return FastCheck(self._senders, Action.PUB)

    def for_pulls(self) -> FastCheck:
        """Return the check of a fast path of pulls."""
        return FastCheck(self._senders, Action.SUB)

    def guard(
        self, request: Request, handler: RequestHandler
    ) -> Response | Awaitable[Response | None] | None:
        """Check a request, then handle it.

        Raises:
            ResponseError: the sender may not make it.
        """
        if request.code in IN_BODY and len(request.body) >= LARGE_BYTES_MIN:
            request.is_exclusive = True
            return self._check_in_thread(request, handler)
        try:
            self._check(request)
        except PrerequisiteError:  # a record has to be read from the disk
            request.is_exclusive = True
            return self._check_later(request, handler)
        return handler(request)

    def _check(self, request: Request) -> None:
        account = self._gate.identify(request)
        if account.may_do_everything:
            return
        self._gate.require(request, account, self._needs.of(request))

    async def _check_later(self, request: Request, handler: RequestHandler) -> Response | None:
        await after_prerequisites(lambda: self._check(request))
        return await _handled(request, handler)

    async def _check_in_thread(self, request: Request, handler: RequestHandler) -> Response | None:
        account = self._gate.identify(request)
        needs = await off_loop(lambda: self._needs.of(request))
        self._gate.require(request, account, needs)
        return await _handled(request, handler)

    def _topic_of_record(self, offset: int) -> str | None:
        """Return the topic of a record, for one that waits for its time or decision the target."""
        self._cold_reads.require_in_memory(self._store.cold_record(offset))
        record = self._store.record_at(offset) if offset >= 0 else None
        if record is None:
            return None
        try:
            parts = split_record(record)
        except CometError:
            return None
        if parts.topic not in SEND_FORBIDDEN_TOPICS:
            return parts.topic
        return decode_properties(parts.properties).get(names.REAL_TOPIC, parts.topic)


async def _handled(request: Request, handler: RequestHandler) -> Response | None:
    """Return the response of a handler that may be a coroutine function."""
    result = handler(request)
    return await result if isinstance(result, Awaitable) else result
