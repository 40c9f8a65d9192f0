"""Looks at each request before the page does, and adds headers to each response."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cometmq.console.access.sign_in import API, PROVIDER, SIGN_IN, SignedIn, is_secure
from cometmq.console.config import Network
from cometmq.model.errors import ConfigError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # without a referrer a form has the origin null
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
STATIC = "/static/"
HOPS_MAX = 16
"""Addresses that are looked at; a request comes through few proxies."""

Who = Callable[[HTTPConnection], SignedIn | None]


class Guard:
    """Refuses requests of other sites, and of visitors who have not signed in.

    Args:
        app: the application behind it.
        who: returns the user of a request; None if there are no users, and so no sign-in. The
            console then serves loopback only, and refuses names that lead there from elsewhere.
        base_url: the address that browsers use, behind a reverse proxy that of the proxy; empty
            for that of the requests.
        proxies: the reverse proxies whose ``X-Forwarded-For`` counts.
    """

    def __init__(
        self, app: ASGIApp, who: Who | None, base_url: str = "", proxies: Sequence[Network] = ()
    ) -> None:
        self._app = app
        self._who = who
        self._base = urlsplit(base_url)
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._base.scheme:  # cookies of a proxy with TLS are for TLS
            scope["scheme"] = self._base.scheme
        connection = HTTPConnection(scope)
        if self._proxies and scope["client"]:
            hops = connection.headers.getlist("x-forwarded-for")
            scope["client"] = visitor_of(scope["client"][0], hops, self._proxies), 0

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if is_secure(connection):
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        refusal = self._refusal(connection)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        """Return the response to a request that is refused; None for one that is served."""
        scope, path = connection.scope, connection.scope["path"]
        scope.setdefault("state", {})["signed_in"] = None
        if self._who is None and not is_loopback(connection.headers.get("host", "")):
            return PlainTextResponse("expected the host 127.0.0.1, localhost or [::1]", 421)
        hosts = connection.headers.get("host", ""), self._base.netloc
        is_change = scope["method"] not in ("GET", "HEAD")
        if is_change and is_of_another_site(connection.headers, hosts):
            return PlainTextResponse("the request comes from another site", 403)
        if not is_change and is_part_of_another_site(connection.headers):
            return PlainTextResponse("a page of another site asks for a part of itself", 403)
        if self._who is None or path.startswith((STATIC, PROVIDER)) or path in (SIGN_IN, API):
            return None
        try:
            scope["state"]["signed_in"] = signed_in = self._who(connection)
        except ConfigError as error:
            return PlainTextResponse(f"the users cannot be read: {error}", 503)
        if signed_in is not None:
            return None
        if path.startswith("/api/"):
            return JSONResponse({"error": "sign in first: POST /api/session"}, 401)
        if scope["method"] != "GET":
            return RedirectResponse(SIGN_IN, 303)
        query = scope["query_string"].decode("latin-1")
        following = f"{path}?{query}" if query else path
        return RedirectResponse(f"{SIGN_IN}?next={quote(following, safe='')}", 303)


def visitor_of(peer: str, hops: Sequence[str], proxies: Sequence[Network]) -> str:
    """Return the address of a visitor: the last one that no proxy has.

    Args:
        peer: the address from which the request comes.
        hops: the headers ``X-Forwarded-For``; a visitor chooses all but what proxies have added.
        proxies: the reverse proxies.
    """
    found = peer
    forwarded = ",".join(hops).split(",")[-HOPS_MAX:]
    while any(ipaddress.ip_address(found) in each for each in proxies) and forwarded:
        try:
            found = str(ipaddress.ip_address(forwarded.pop().strip()))
        except ValueError:
            break
    return found


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine by a name that no other has."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or is_loopback_address(name)


def is_loopback_address(name: str) -> bool:
    """Whether a text is an address of loopback."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_part_of_another_site(headers: Headers) -> bool:
    """Whether a browser says that a page of another site has asked, and no visitor who follows a
    link: it could not read the response, but each request asks the cluster."""
    return (
        headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
        and headers.get("sec-fetch-mode") != "navigate"
    )


def is_of_another_site(headers: Headers, hosts: Sequence[str]) -> bool:
    """Whether a browser says that another site has made a request; other clients say nothing.

    Args:
        headers: of the request.
        hosts: of the console; an empty one is none.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        host = urlsplit(origin).netloc
    except ValueError:
        return True
    return not host or host not in hosts
