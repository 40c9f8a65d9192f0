"""The gate: every request passes it before it is handled.

A source of accounts identifies the sender; the sender's `Account` decides about what the request
needs. The gate joins the two, and logs refusals. It is the same for each port of a server. A fast
path asks the same source and the same account, and leaves what it would have to refuse to the
general path.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import IntFlag
from typing import Final, NamedTuple, Protocol

from cometmq.model.errors import ResponseError
from cometmq.model.topic import RETRY_PREFIX
from cometmq.remoting.requests import Request
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)


class Action(IntFlag):
    """What a request does with a topic or a group."""

    PUB = 4
    SUB = 8


class Need(NamedTuple):
    """What a request needs: an action on a topic or a group."""

    is_group: bool
    name: str
    action: Action


class Needs(NamedTuple):
    """All that a request needs beside a signature."""

    administrator: bool = False
    resources: tuple[Need, ...] = ()


NOTHING: Final = Needs()
"""A signature is enough."""
ADMINISTRATOR: Final = Needs(administrator=True)


def group_need(name: str) -> Need:
    """Return the need to consume as a group."""
    return Need(True, name, Action.SUB)


def topic_need(name: str, action: Action) -> Need:
    """Return the need of a topic; a retry topic belongs to its group, which must be consumed."""
    if name.startswith(RETRY_PREFIX):
        return group_need(name[len(RETRY_PREFIX) :])
    return Need(False, name, action)


class Account(Protocol):
    """An account whose request passed the check of its signature."""

    @property
    def may_everything(self) -> bool:
        """Whether no request needs a check."""

    def refusal(self, code: int, needs: Needs) -> str | None:
        """Return why a request is refused; None if it is not.

        Args:
            code: the request code.
            needs: what it needs.
        """


class Accounts(Protocol):
    """A source of accounts."""

    def identify(self, request: Request) -> Account:
        """Return the account of a request.

        Raises:
            ResponseError: it has none, or its signature is wrong.
        """


class Gate:
    """Refuses requests that their sender may not make.

    Args:
        accounts: knows the senders.
        refused: the response code of refusals.
    """

    def __init__(self, accounts: Accounts, refused: int) -> None:
        self._accounts = accounts
        self._refused = refused
        self._refusals = RateLimitedLog(log, "requests were refused")

    def identify(self, request: Request) -> Account:
        """Return the account of a request.

        Raises:
            ResponseError: it has none, or its signature is wrong.
        """
        try:
            return self._accounts.identify(request)
        except ResponseError as refusal:
            self._log(request, refusal.remark)
            raise

    def require(self, request: Request, account: Account, needs: Needs) -> None:
        """Refuse a request whose account lacks what it needs.

        Raises:
            ResponseError: it does.
        """
        remark = account.refusal(request.code, needs)
        if remark is not None:
            self._log(request, remark)
            raise ResponseError(self._refused, remark)

    def settle_log(self) -> None:
        """Log how many refusals were only counted."""
        self._refusals.settle()

    def _log(self, request: Request, remark: str) -> None:
        peer = request.connection.peer_text
        # Names are the sender's own text, and must not make lines of the log.
        shown = "".join([unit if unit.isprintable() else "?" for unit in remark])
        self._refusals.add("access refused peer=%s code=%s: %s", peer, request.code, shown)


def needs_of(*resources: Need | Iterable[Need]) -> Needs:
    """Return needs without an administrator."""
    every: list[Need] = []
    for resource in resources:
        if isinstance(resource, Need):
            every.append(resource)
        else:
            every.extend(resource)
    return Needs(resources=tuple(every))
