"""Access control of a broker: each request passes the gate before its handler runs."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import Final

from cometmq.access.fast_check import FastCheck
from cometmq.access.gate import Account, Accounts, Gate
from cometmq.access.needs import Action, Need, group_need, needs_of, require_stated, topic_need
from cometmq.access.rights import RequestNeeds, Rights
from cometmq.broker.clients.members import Member
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.prerequisites import PrerequisiteError, after_prerequisites
from cometmq.model import property_names as names
from cometmq.model.errors import CometError
from cometmq.model.topic import HALF_TOPIC, SEND_FORBIDDEN_TOPICS
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.remoting.connection import refuse_unknown
from cometmq.remoting.slices import off_loop
from cometmq.remoting.wire import Wire
from cometmq.store import MessageStore

LARGE_BYTES_MIN: Final = 16 * 1024
"""Requests with larger bodies are checked in a thread, if the body says what they need."""
CHECKS_MAX: Final = 3
"""How often such a request is checked, if accounts change meanwhile."""


class AccessControl:
    """Checks the requests of a broker.

    Args:
        accounts: the accounts.
        gate: checks signatures and permissions.
        needs: reads what requests need.
    """

    def __init__(self, accounts: Accounts, gate: Gate, needs: RequestNeeds) -> None:
        self._accounts = accounts
        self._gate = gate
        self._needs = needs
        self.settle_log = gate.settle_log
        self.is_administrator = gate.is_administrator
        self.needs_account = gate.needs_account
        self.account_of = gate.account_of

    def for_sends(self) -> FastCheck:
        """Return the check of a fast path of sends."""
        return FastCheck(self._accounts, Action.PUB)

    def for_pulls(self) -> FastCheck:
        """Return the check of a fast path of pulls."""
        return FastCheck(self._accounts, Action.SUB)

    def take_rights(self, served: Iterable[int], rights: Mapping[int, Rights]) -> None:
        """State what requests need; before that, all of them need an administrator.

        Args:
            served: the codes of the requests that the broker serves.
            rights: what requests need.

        Raises:
            ValueError: a request is served, and it is not stated what it needs.
        """
        self._needs.state(rights)
        require_stated(served, self._needs.codes, "cometmq.broker, rights.py of its feature,")

    @property
    def state(self) -> object:
        """An object that is another one after each change of the accounts."""
        return self._accounts.state

    def check_pull_again(self, request: Request, access_key: str, topic: str, group: str) -> None:
        """Check a pull that has waited, by the current accounts.

        Args:
            request: the pull.
            access_key: the one that it has named; empty for none.
            topic, group: what it consumes, and as which group.

        Raises:
            ResponseError: the sender may not make it any more.
        """
        needs = needs_of(topic_need(topic, Action.SUB), group_need(group))
        self._gate.check_again(request, access_key, needs)

    def creator(self, request: Request, need: Need, needs_right: bool) -> str:
        """Return the name of the account that creates a topic or a group by using it.

        Args:
            request: the request, whose signature was checked; by the current accounts.
            need: the creation.
            needs_right: whether that needs a right of its own.

        Raises:
            ResponseError: the account may not create it.
        """
        return self._gate.creator(request, need, needs_right)

    def may_send(self, member: Member, topic: str) -> bool:
        """Return whether a member of a producer group may send to a topic, by the current accounts.

        Its account is the one that its heartbeat was signed with. If heartbeats need no signature,
        they prove no account, and every member may.
        """
        needs = needs_of(topic_need(topic, Action.PUB))
        code, connection = RequestCode.HEART_BEAT, member.connection
        return self._gate.refusal_now(connection, code, member.access_key, needs) is None

    def knows(self, connection: Wire, command: Command) -> bool:
        """Return whether a request needs no account, or names one, by its header alone."""
        return self._gate.knows(connection, command)

    def guard(
        self, request: Request, handler: RequestHandler
    ) -> Response | Awaitable[Response | None] | None:
        """Check a request, then handle it.

        One that is not served, and whose needs are not stated, needs a signature only: it is
        refused in any case, and clients try out what a broker serves.

        Raises:
            ResponseError: the sender may not make it.
        """
        if handler is refuse_unknown and request.code not in self._needs.codes:
            self._gate.identify(request)
            return handler(request)
        if request.code in self._needs.in_body and len(request.body) >= LARGE_BYTES_MIN:
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
        if account is not None:
            self._gate.require(request, account, self._needs.of(request))

    async def _check_later(self, request: Request, handler: RequestHandler) -> Response | None:
        await after_prerequisites(lambda: self._check(request))
        return await _handled(request, handler)

    async def _check_in_thread(self, request: Request, handler: RequestHandler) -> Response | None:
        for _ in range(CHECKS_MAX):
            state = self._accounts.state
            account = self._gate.identify(request)
            if account is None:
                break
            self._gate.refuse(request, await off_loop(partial(self._refusal, request, account)))
            if self._accounts.state is state:
                break
        return await _handled(request, handler)

    def _refusal(self, request: Request, account: Account) -> str | None:
        return account.refusal(request.code, self._needs.of(request))


class RecordTopics:
    """Finds the topics of messages that requests name by their offsets.

    Args:
        store: contains the messages.
        cold_reads: reads what is on the disk only.
    """

    def __init__(self, store: MessageStore, cold_reads: ColdReads) -> None:
        self._store = store
        self._cold_reads = cold_reads

    def of_record(self, offset: int) -> str | None:
        """Return the topic of a record, for one that waits for its time or decision the target."""
        found = self._parts_at(offset)
        if found is None or found.topic not in SEND_FORBIDDEN_TOPICS:
            return None if found is None else found.topic
        return decode_properties(found.properties).get(names.REAL_TOPIC, found.topic)

    def of_half(self, offset: int) -> str | None:
        """Return the topic that a half message is for; None for any other record."""
        found = self._parts_at(offset)
        if found is None or found.topic != HALF_TOPIC:
            return None
        return decode_properties(found.properties).get(names.REAL_TOPIC, found.topic)

    def _parts_at(self, offset: int) -> RecordParts | None:
        self._cold_reads.require_in_memory(self._store.cold_record(offset))
        record = self._store.record_at(offset) if offset >= 0 else None
        try:
            return None if record is None else split_record(record)
        except CometError:
            return None


async def _handled(request: Request, handler: RequestHandler) -> Response | None:
    """Return the response of a handler that may be a coroutine function."""
    result = handler(request)
    return await result if isinstance(result, Awaitable) else result
