"""Checks the requests of a server whose requests need no topics: a name server or a controller."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from cometmq.access.certificates import with_certificates
from cometmq.access.gate import Accounts, Gate
from cometmq.access.needs import StatedNeeds
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request, RequestHandler, Response, TlsSettings
from cometmq.remoting.jobs import Job, every
from cometmq.remoting.wire import Wire

LOG_S: Final = 10.0


class ServerGuard:
    """Refuses requests without a signature, and requests that need an administrator.

    Args:
        accounts: the accounts.
        tls: whether certificates name accounts.
        needs: what requests need.
        refused: the response code of refusals.
        jobs: keep the accounts up to date.
    """

    def __init__(
        self,
        accounts: Accounts,
        tls: TlsSettings,
        needs: StatedNeeds,
        *,
        refused: int = ResponseCode.SYSTEM_ERROR,
        jobs: Sequence[Job] = (),
    ) -> None:
        self._gate = Gate(with_certificates(accounts, tls), refused)
        self._needs = needs
        self._jobs = jobs

    def knows(self, connection: Wire, command: Command) -> bool:
        """Return whether a request needs no account, or names one, by its header alone."""
        return self._gate.knows(connection, command)

    def guard(
        self, request: Request, handler: RequestHandler
    ) -> Response | Awaitable[Response | None] | None:
        """Check a request, then handle it.

        Raises:
            ResponseError: the sender may not make it.
        """
        account = self._gate.identify(request)
        if account is not None:
            self._gate.require(request, account, self._needs.of(request.code))
        return handler(request)

    def require_stated(self, served: Iterable[int]) -> None:
        """Refuse to serve requests whose needs are not stated.

        Raises:
            ValueError: there are such requests.
        """
        self._needs.require_stated(served)

    def jobs(self) -> Sequence[Job]:
        """Return the jobs of the accounts, and the log of refusals."""
        return [*self._jobs, every(LOG_S, self._gate.settle_log, "log-refused-requests")]
