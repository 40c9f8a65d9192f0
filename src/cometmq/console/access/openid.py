"""Sign-in by a provider of OpenID Connect: the authorization code flow with PKCE.

A sign-in that has begun is a cookie, not memory of the server, so that strangers cannot push out
the sign-ins of others. The cookie has a random token and its end, authenticated by a key of this
process; state, nonce and PKCE's verifier follow from the token and that key. A sign-in ends once:
its state is remembered for as long as the cookie is valid.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cometmq.console.access.provider import Identity, Provider, ProviderError, TokenError
from cometmq.console.access.sign_in import (
    PROVIDER,
    SIGN_IN,
    WAITING_MAX,
    RefusedError,
    SignIns,
    address_of,
    is_same,
    is_secure,
    with_session,
)
from cometmq.console.config import ConsoleSettings
from cometmq.system.clock import Clock
from cometmq.system.log_format import printable

log = logging.getLogger(__name__)

COOKIE = "cometmq_openid"
BACK, OUT = f"{PROVIDER}/back", f"{PROVIDER}/out"
SIGN_IN_S = 600
"""Time for a sign-in at the provider."""
NEXT_MAX = 1024
CODE_MAX = 4096
ENDED_MAX = 1_000
"""Sign-ins whose state is remembered."""
PREFIX = "openid:"
"""Before names of the provider: a name of the file has no colon."""


class OpenIdSignIns:
    """Signs in users of a provider.

    Args:
        settings: with the provider.
        sign_ins: has the sessions, and shows the page of the sign-in.
        clock: measures how long a sign-in takes.
    """

    def __init__(
        self, settings: ConsoleSettings, sign_ins: SignIns, clock: Clock | None = None
    ) -> None:
        assert settings.openid is not None
        self._base = settings.base_url
        self._issuer = settings.openid.issuer
        self.provider = Provider(settings.openid, f"{self._base}{BACK}")
        self._sign_ins = sign_ins
        self._clock = clock or Clock()
        self._key = secrets.token_bytes(32)
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._waiting = 0

    @property
    def routes(self) -> list[Route]:
        """The routes of the sign-in."""
        return [
            Route(PROVIDER, self._begin, methods=["GET"]),
            Route(BACK, self._end, methods=["GET"]),
            Route(OUT, self._leave, methods=["GET"]),
        ]

    async def _begin(self, request: Request) -> Response:
        """Send a browser to the provider."""
        following = self._sign_ins.page(request.query_params.get("next", "/"))
        if len(following) > NEXT_MAX:
            following = "/"
        end = round(self._clock.monotonic()) + SIGN_IN_S
        started = f"{secrets.token_urlsafe(32)}.{end}.{quote(following, safe='')}"
        challenge = _base64(hashlib.sha256(self._derived("verifier", started).encode()).digest())
        state, nonce = self._derived("state", started), self._derived("nonce", started)
        try:
            address = await self.provider.sign_in_address(state, nonce, challenge)
        except ProviderError as error:
            return self._refused(request, following, RefusedError(502, _text(error)))
        response = RedirectResponse(address, 303)
        value = f"{self._derived('cookie', started)}.{started}"
        response.set_cookie(
            COOKIE, value, max_age=SIGN_IN_S, path=PROVIDER, httponly=True, samesite="lax",
            secure=is_secure(request),
        )  # fmt: skip
        return response

    async def _end(self, request: Request) -> Response:
        """Begin the session of a browser that comes back from the provider."""
        cookie = request.cookies.get(COOKIE, "")
        following = "/"
        try:
            started = self._started(cookie)
            following = self._sign_ins.page(unquote(started.split(".", 2)[2]))
            identity = await self._identity(request, started)
            name = f"{PREFIX}{identity.name}"
            values = {"subject": identity.subject}
            address = address_of(request)
            if identity.role is None:
                self._sign_ins.record(name, address, "sign-in", "refused: no role", values)
                raise RefusedError(
                    403, f"{identity.name} has no role in the console: ask its administrator."
                )
            self._sign_ins.record(name, address, "sign-in", "done", values)
        except RefusedError as error:
            return self._refused(request, following, error)
        token, _ = self._sign_ins.sessions.add(name, identity.role)
        response = RedirectResponse(following, 303)
        response.delete_cookie(COOKIE, path=PROVIDER)
        return with_session(response, request, token)

    async def _leave(self, request: Request) -> Response:
        """Send a browser to where it ends its session at the provider."""
        try:
            address = await self.provider.sign_out_address(f"{self._base}{SIGN_IN}")
        except ProviderError as error:
            return self._refused(request, "/", RefusedError(502, _text(error)))
        return RedirectResponse(address or SIGN_IN, 303)

    async def _identity(self, request: Request, started: str) -> Identity:
        """Return the user for whom the provider has sent a browser back.

        Raises:
            RefusedError: the sign-in was not begun in this browser, has ended already, or the
                provider refuses it.
        """
        given, address = request.query_params, address_of(request)
        state = self._derived("state", started)
        if not is_same(given.get("state", ""), state) or state in self._ended:
            raise RefusedError(400, "This sign-in has ended, or is of another browser: try again.")
        if self._sign_ins.limit.is_exceeded(f"openid {address}"):
            raise RefusedError(429, "Too many attempts: try again in a minute.", 60.0)
        if self._waiting >= WAITING_MAX:
            raise RefusedError(503, "Too many sign-ins at once: try again.", 1.0)
        while len(self._ended) >= ENDED_MAX:
            self._ended.popitem(last=False)
        self._ended[state] = None
        self._waiting += 1
        try:
            issuer, metadata = given.get("iss"), await self.provider.metadata()
            if issuer is None and metadata.authorization_response_iss_parameter_supported:
                raise TokenError("the provider has not named itself")
            if issuer not in (None, self._issuer):
                raise TokenError("the response is of another provider")
            if "error" in given:
                raise TokenError(f"the provider says {printable(given['error'])[:80]}")
            code = given.get("code", "")
            if not 0 < len(code) <= CODE_MAX:
                raise TokenError("the provider has sent no code")
            verifier, nonce = self._derived("verifier", started), self._derived("nonce", started)
            return await self.provider.identity(code, verifier, nonce)
        except (ProviderError, TokenError) as error:
            log.warning("a sign-in by OpenID Connect is refused address=%s: %s", address, error)
            self._sign_ins.limit.wait_s(f"openid {address}")
            self._sign_ins.record("", address, "sign-in", f"refused: {error}")
            status = 403 if isinstance(error, TokenError) else 502
            raise RefusedError(status, _text(error)) from None
        finally:
            self._waiting -= 1

    def _started(self, cookie: str) -> str:
        """Return what a cookie says about the sign-in.

        Raises:
            RefusedError: it is none of this process, or its time is over.
        """
        proof, _, started = cookie.partition(".")
        if is_same(proof, self._derived("cookie", started)):
            _, end, _ = started.split(".", 2)
            if self._clock.monotonic() <= int(end):
                return started
        raise RefusedError(400, "The sign-in took too long, or cookies are off: try again.")

    def _derived(self, purpose: str, started: str) -> str:
        """Return a secret of a sign-in."""
        text = f"{purpose}:{started}".encode(errors="replace")
        return _base64(hmac.digest(self._key, text, "sha256"))

    def _refused(self, request: Request, following: str, error: RefusedError) -> Response:
        response = self._sign_ins.show(request, following, error)
        response.delete_cookie(COOKIE, path=PROVIDER)
        return response


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _text(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
