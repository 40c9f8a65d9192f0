"""The gate: every request passes it before it is handled.

A source of accounts knows the sender; the gate checks the signature; the sender's `Account` decides
about what the request needs. The gate is the same for each port of a server, and logs refusals. A
fast path asks the same source and the same account, and leaves what it would have to refuse to the
general path.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from cometmq.access.needs import Need, Needs
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import FORWARDED, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.signature import SIGNATURE, SigningKey, signed_content
from cometmq.remoting.requests import Request
from cometmq.remoting.wire import Wire
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)

NAMES_SHOWN_MAX: Final = 200
"""The characters of a name in a refusal."""


class Account(Protocol):
    """The account of a sender."""

    @property
    def signing_key(self) -> SigningKey | None:
        """The key of its signatures; None if its requests need none."""

    @property
    def name(self) -> str:
        """Its name; empty for one of an address."""

    @property
    def may_do_everything(self) -> bool:
        """Whether a valid signature is enough for every request."""

    @property
    def is_administrator(self) -> bool:
        """Whether it manages the server: an administrator, or a super user."""

    def refusal(self, code: int, needs: Needs) -> str | None:
        """Return why a request is refused; None if it is not.

        Args:
            code: the request code.
            needs: what it needs.
        """

    def creation_refusal(self, need: Need, needs_right: bool) -> str | None:
        """Return why the account may not create a topic or a group by using it; None if it may.

        Args:
            need: the creation; the right to use it was checked.
            needs_right: whether creation needs a right of its own.
        """


class Accounts(Protocol):
    """A source of accounts."""

    @property
    def state(self) -> object:
        """An object that is another one after each change."""

    def sender_of(self, connection: Wire, access_key: str) -> Account:
        """Return the account of a sender, whose signature is not checked yet.

        Args:
            connection: its connection.
            access_key: the access key of its request; empty for none.

        Raises:
            ResponseError: there is no such account.
        """

    def named(self, connection: Wire, access_key: str) -> Account:
        """Return the account that a request names, whatever its connection proves.

        Raises:
            ResponseError: there is no such account.
        """


class Gate:
    """Refuses requests that the sender has no right to.

    Args:
        accounts: knows the senders.
        refused: the response code of refusals.
        open_codes: the codes of requests that need no account.
        signed_codes: the codes of requests that need a signature only.
    """

    def __init__(
        self,
        accounts: Accounts,
        refused: int,
        *,
        open_codes: frozenset[int] = frozenset(),
        signed_codes: frozenset[int] = frozenset(),
    ) -> None:
        self._accounts = accounts
        self._refused = refused
        self._open_codes = open_codes
        self._signed_codes = signed_codes
        self._refusals = RateLimitedLog(log, "requests were refused")

    def knows(self, connection: Wire, command: Command) -> bool:
        """Return whether a request needs no account, or names one, by its header alone."""
        if command.code in self._open_codes:
            return True
        try:
            self._accounts.sender_of(connection, command.access_key)
        except ResponseError:
            return False
        return True

    def identify(self, request: Request) -> Account | None:
        """Return the account of a request that needs permissions; None if it needs no more.

        Raises:
            ResponseError: it has no account, or its signature is wrong.
        """
        if request.code in self._open_codes:
            return None
        try:
            account = self._identify(request)
        except ResponseError as refusal:
            self._log(request, refusal.remark)
            raise
        if account.may_do_everything or request.code in self._signed_codes:
            return None
        return account

    def _identify(self, request: Request) -> Account:
        fields, access_key = request.command.fields, request.command.access_key
        account = self._account_of(request)
        signing_key = account.signing_key
        if signing_key is not None:
            content = signed_content(fields, request.body, version=request.command.version)
            signature = fields.get(SIGNATURE, "").encode("utf-8", "replace")
            if not signing_key.accepts(content, signature):
                raise ResponseError(
                    self._refused,
                    f"Check signature failed for accessKey={access_key[:NAMES_SHOWN_MAX]}",
                )
        return account

    def _account_of(self, request: Request) -> Account:
        # The certificate and the address of a forwarded request are those of a slave.
        is_forwarded = request.command.remark == FORWARDED
        find = self._accounts.named if is_forwarded else self._accounts.sender_of
        return find(request.connection, request.command.access_key)

    def require(self, request: Request, account: Account, needs: Needs) -> None:
        """Refuse a request whose account lacks what it needs.

        Raises:
            ResponseError: it does.
        """
        self.refuse(request, account.refusal(request.code, needs))
        if needs.unknown:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, needs.unknown)

    def refuse(self, request: Request, remark: str | None) -> None:
        """Refuse a request for the reason that its account named, if there is one.

        Raises:
            ResponseError: there is.
        """
        if remark is not None:
            self._log(request, remark)
            raise ResponseError(self._refused, remark)

    def check_again(self, request: Request, access_key: str, needs: Needs) -> None:
        """Check a request that has waited, by the current accounts.

        Args:
            request: the request, whose signature was checked when it came.
            access_key: the one that it has named; empty for none.
            needs: what it needs.

        Raises:
            ResponseError: there is no such account any more, or it lacks what the request needs.
        """
        self.refuse(request, self.refusal_now(request.connection, request.code, access_key, needs))

    def refusal_now(self, connection: Wire, code: int, access_key: str, needs: Needs) -> str | None:
        """Return why the current accounts refuse a request that was signed; None if they do not.

        Args:
            connection: its connection.
            code: its code.
            access_key: the one that it has named; empty for none.
            needs: what it needs.
        """
        if code in self._open_codes:
            return None
        try:
            account = self._accounts.sender_of(connection, access_key)
        except ResponseError as refusal:
            return refusal.remark
        if account.may_do_everything or code in self._signed_codes:
            return None
        return account.refusal(code, needs)

    def account_of(self, request: Request) -> Account | None:
        """Return the account of a request, whose signature was checked; None if it needs none.

        Raises:
            ResponseError: there is no such account any more.
        """
        return None if request.code in self._open_codes else self._account_of(request)

    def creator(self, request: Request, need: Need, needs_right: bool) -> str:
        """Return the name of the account that creates a topic or a group; empty for none.

        Raises:
            ResponseError: the account may not create it, or there is none.
        """
        if request.code in self._open_codes:  # no signature has proved an account
            if needs_right:
                self.refuse(
                    request,
                    f"a request that is not signed creates no {need.resource_type.lower()}"
                    f" {need.name[:NAMES_SHOWN_MAX]}",
                )
            return ""
        account = self._account_of(request)
        self.refuse(request, account.creation_refusal(need, needs_right))
        return account.name

    def needs_account(self, code: int) -> bool:
        """Return whether requests with a code need an account."""
        return code not in self._open_codes

    def is_administrator(self, request: Request) -> bool:
        """Return whether the sender of a request, whose signature was checked, is one now."""
        try:
            account = self.account_of(request)
        except ResponseError:
            return False
        return account is not None and account.is_administrator

    def settle_log(self) -> None:
        """Log how many refusals were only counted."""
        self._refusals.settle()

    def _log(self, request: Request, remark: str) -> None:
        peer = request.connection.peer_text
        self._refusals.add("access refused peer=%s code=%s: %s", peer, request.code, remark)
