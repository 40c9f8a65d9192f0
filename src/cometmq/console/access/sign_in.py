"""Sign-in and sign-out, as a form and as JSON."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec
from jinja2 import Environment
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from cometmq.console.access.audit import AuditLog
from cometmq.console.access.sessions import AttemptLimit, Session, Sessions
from cometmq.console.access.users import PASSWORD_CHARS_MAX, User, Users, is_password_of
from cometmq.model.errors import ConfigError
from cometmq.system.clock import Clock

SESSION_COOKIE, FORM_COOKIE = "cometmq_session", "cometmq_form"
SIGN_IN, SIGN_OUT, API = "/sign-in", "/sign-out", "/api/session"
PROVIDER = f"{SIGN_IN}/openid"
"""Below it are the pages of a sign-in by a provider."""
BODY_BYTES_MAX, BODY_S = 8 * 1024, 10.0
WAITING_MAX = 8
"""Sign-ins that wait for the one whose password is checked."""


class SignedIn(NamedTuple):
    """The user of a request, and the session."""

    user: User
    session: Session


class Credentials(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a sign-in by JSON."""

    user: str
    password: str


class RefusedError(Exception):
    """A sign-in that is refused.

    Args:
        status: the HTTP status.
        reason: the text for the visitor.
        retry_s: seconds after which to try again.
    """

    def __init__(self, status: int, reason: str, retry_s: float = 0.0) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = {"Retry-After": str(math.ceil(retry_s))} if retry_s else {}


class SignIns:
    """Signs users in and out.

    Args:
        users: the users with a password; None if all users are of the provider.
        audit: gets a line for each sign-in and sign-out.
        templates: with the form.
        paths: of the pages, to which a sign-in may lead back.
        provider: what the form calls the provider, which may sign users in as well; empty for none.
        clock: measures sessions and attempts.
    """

    def __init__(
        self,
        users: Users | None,
        audit: AuditLog,
        templates: Environment,
        paths: Collection[str],
        provider: str = "",
        clock: Clock | None = None,
    ) -> None:
        clock = clock or Clock()
        self.sessions = Sessions(clock)
        self.limit = AttemptLimit(clock)
        self._users, self._audit = users, audit
        self._template = templates.get_template("access/sign_in.html")
        self._paths, self._provider = paths, provider
        self._checking = asyncio.Lock()
        self._waiting = 0

    @property
    def routes(self) -> list[Route]:
        """The routes of sign-in and sign-out."""
        return [
            Route(SIGN_IN, self._form, methods=["GET"]),
            Route(SIGN_IN, self._submit, methods=["POST"]),
            Route(SIGN_OUT, self._sign_out, methods=["POST"]),
            Route(API, self._sign_in_by_json, methods=["POST"]),
        ]

    def who(self, connection: HTTPConnection) -> SignedIn | None:
        """Return the user of a request; None if it has no session, or the user was removed or has
        another password since the sign-in."""
        session = self.sessions.find(connection.cookies.get(SESSION_COOKIE, ""))
        if session is None:
            return None
        if session.role is not None:
            return SignedIn(User(session.user, session.role, ""), session)
        user = self._users.find(session.user) if self._users else None
        return SignedIn(user, session) if user and user.hash == session.hash else None

    async def _form(self, request: Request) -> Response:
        is_out = bool(self._provider) and "out" in request.query_params
        return self.show(request, request.query_params.get("next", "/"), is_out=is_out)

    async def _submit(self, request: Request) -> Response:
        try:
            form = await form_of(request)
        except RefusedError as error:
            return self.show(request, "/", error)
        following = form.get("next", "/")
        if not is_same(form.get("form_token", ""), request.cookies.get(FORM_COOKIE, "")):
            reason = "The form is too old, or cookies are off: try again."
            return self.show(request, following, RefusedError(403, reason))
        given = Credentials(form.get("user", ""), form.get("password", ""))
        try:
            token, _ = await self._sign_in(given, address_of(request))
        except RefusedError as error:
            return self.show(request, following, error)
        response = RedirectResponse(self.page(following), 303)
        response.delete_cookie(FORM_COOKIE, path="/")
        return with_session(response, request, token)

    async def _sign_in_by_json(self, request: Request) -> Response:
        try:
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                raise RefusedError(415, "expected the content type application/json")
            given = msgspec.json.decode(await body_of(request), type=Credentials)
            token, session = await self._sign_in(given, address_of(request))
        except msgspec.DecodeError as error:
            return JSONResponse({"error": f"{error}: expected user and password"}, 400)
        except RefusedError as error:
            return JSONResponse({"error": str(error)}, error.status, error.headers)
        return with_session(JSONResponse({"form_token": session.form_token}), request, token)

    async def _sign_out(self, request: Request) -> Response:
        signed_in = self.who(request)
        if signed_in is not None:
            form = await form_of(request)
            if not is_same(form.get("form_token", ""), signed_in.session.form_token):
                return HTMLResponse("The form is not of this session.", 403)
            self.sessions.end(request.cookies.get(SESSION_COOKIE, ""))
            self.record(signed_in.user.name, address_of(request), "sign-out", "done")
        is_of_provider = signed_in is not None and signed_in.session.role is not None
        response = RedirectResponse(f"{SIGN_IN}?out=1" if is_of_provider else SIGN_IN, 303)
        response.delete_cookie(SESSION_COOKIE, path="/")
        return response

    async def _sign_in(self, given: Credentials, address: str) -> tuple[str, Session]:
        """Begin a session.

        Raises:
            RefusedError: user and password do not fit, or there are too many attempts.
        """
        for key in (f"address {address}", f"user {given.user[:64]}"):
            wait = self.limit.wait_s(key)
            if not wait:
                continue  # an address with too many attempts uses up no user's attempts
            if self.limit.first_refusal(key):  # one line a minute, not one per attempt
                self.record(given.user, address, "sign-in", "too many attempts")
            raise RefusedError(429, "Too many attempts: try again in a minute.", wait)
        if self._waiting >= WAITING_MAX:
            raise RefusedError(503, "Too many sign-ins at once: try again.", 1.0)
        try:
            user = self._users.find(given.user) if self._users else None
        except ConfigError as error:
            raise RefusedError(503, f"The users cannot be read: {error}") from None
        self._waiting += 1
        try:
            async with self._checking:  # one at a time: each takes 19 MiB
                password = given.password[: PASSWORD_CHARS_MAX + 1]
                is_right = await asyncio.to_thread(is_password_of, user, password)
        finally:
            self._waiting -= 1
        if user is None or not is_right:
            self.record(given.user, address, "sign-in", "refused")
            raise RefusedError(403, "The user or the password is wrong.")
        self.record(user.name, address, "sign-in", "done")
        return self.sessions.add(user.name, hash=user.hash)

    def record(
        self, user: str, address: str, action: str, result: str,
        values: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Write a line of the audit log.

        Raises:
            RefusedError: it cannot be written.
        """
        try:
            self._audit.add(user=user, address=address, action=action, result=result, values=values)
        except OSError as error:
            raise RefusedError(503, f"The audit log cannot be written: {error.strerror}") from None

    def page(self, following: str) -> str:
        """Return where a sign-in leads: to a page of the console, whatever the request says."""
        try:
            parts = urlsplit(following)
        except ValueError:
            return "/"
        if parts.scheme or parts.netloc or parts.path not in self._paths:
            return "/"
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    def show(
        self,
        request: Request,
        following: str,
        error: RefusedError | None = None,
        *,
        is_out: bool = False,
    ) -> Response:
        """Return the page of the sign-in.

        Args:
            request: which it is the response to.
            following: where the sign-in leads.
            error: why the sign-in before was refused.
            is_out: whether a user of the provider has just signed out.
        """
        token = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(32)
        content = self._template.render(
            form_token=token, next=self.page(following), error=str(error or ""), is_out=is_out,
            has_users=self._users is not None, provider=self._provider,
        )  # fmt: skip
        status, headers = (error.status, error.headers) if error else (200, {})
        response = HTMLResponse(content, status, headers)
        response.set_cookie(
            FORM_COOKIE, token, httponly=True, samesite="strict", secure=is_secure(request)
        )
        return response


def is_same(given: str, expected: str) -> bool:
    """Whether a form has the expected token; comparing takes as long for each wrong one."""
    return bool(expected) and hmac.compare_digest(given.encode(), expected.encode())


def is_secure(request: HTTPConnection) -> bool:
    """Whether a request came by TLS."""
    return bool(request.scope.get("scheme") == "https")


def address_of(request: HTTPConnection) -> str:
    """Return the IP address of the visitor."""
    return request.client.host if request.client else ""


async def body_of(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the body of a request.

    Raises:
        RefusedError: it is too large, takes too long, or is cut off.
    """
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    raise RefusedError(413, f"The form is larger than {bytes_max} bytes.")
    except TimeoutError:
        raise RefusedError(408, f"The form did not arrive within {BODY_S:.0f} s.") from None
    except ClientDisconnect:  # nobody reads the response
        raise RefusedError(400, "The form was cut off.") from None
    return body


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        RefusedError: it is too large, too slow or malformed.
    """
    body = await body_of(request)
    try:
        fields = parse_qs(body.decode(), max_num_fields=16, errors="strict")
    except ValueError:
        raise RefusedError(400, "The form cannot be read.") from None
    return {name: values[-1] for name, values in fields.items()}


def with_session(response: Response, request: Request, token: str) -> Response:
    """Return a response that gives the browser a session."""
    response.set_cookie(
        SESSION_COOKIE, token, httponly=True, samesite="lax", secure=is_secure(request)
    )
    return response
