"""Sign-in to the console by OpenID Connect: by a real provider, and by hostile ones."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey
from starlette.types import ASGIApp, Receive, Scope, Send

from cometmq.client import AdminClient
from cometmq.console.access import provider as provider_module
from cometmq.console.access.openid import BACK
from cometmq.console.access.sessions import ATTEMPTS_MAX
from cometmq.console.access.users import add_user
from cometmq.console.app import Console, Options, check
from cometmq.console.config import settings_of
from cometmq.console.pages import Role
from cometmq.model.errors import ConfigError

BASE = "https://console.example"
CLIENT, SECRET = "console", "s3cret/of the:client"
PASSWORD = "correct horse battery"
WELL_KNOWN = "/.well-known/openid-configuration"
VISITOR = "192.0.2.7"
LIMIT_S = 60.0
Change = Callable[[dict[str, Any]], object]


@functools.cache
def rsa(kid: str) -> RSAKey:
    """A key, which takes time to make."""
    return RSAKey.generate_key(2048, {"kid": kid})


def proxied(app: ASGIApp) -> ASGIApp:
    """A reverse proxy that ends TLS, and sends requests on to another host."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [each for each in scope["headers"] if each[0] != b"host"]
        headers += [(b"host", b"inside:8082"), (b"x-forwarded-for", VISITOR.encode())]
        await app({**scope, "scheme": "http", "headers": headers}, receive, send)

    return call


class Site:
    """A console behind a reverse proxy, with users of a provider and a local one."""

    def __init__(self, folder: Path, issuer: str, *, secret: str = SECRET, **openid: Any) -> None:
        self._log = folder / "audit.log"
        if not (folder / "users").exists():
            add_user(folder / "users", "ada", Role.READER, PASSWORD)
        roles = {"reader": ["staff"], "operator": ["on-call"], "administrator": ["operations"]}
        table = {"issuer": issuer, "client_id": CLIENT, "roles": roles, **openid}
        settings = settings_of(
            {"console": {"base_url": BASE, "proxies": ["127.0.0.1"], "openid": table}},
            None,
            {"COMETMQ_CONSOLE_OPENID_SECRET": secret},
        )
        options = Options(users=folder / "users", settings=settings)
        self.console = Console(AdminClient("127.0.0.1:1"), options)

    def browser(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(proxied(self.console.app))
        return httpx.AsyncClient(transport=transport, base_url=BASE)

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


async def begin(browser: httpx.AsyncClient, following: str = "/") -> str:
    """Begin a sign-in; return the address at the provider."""
    begun = await browser.get("/sign-in/openid", params={"next": following})
    assert begun.status_code == 303, begun.text
    cookie = begun.headers["set-cookie"]
    assert all(f"; {part}" in cookie for part in ("HttpOnly", "Secure", "SameSite=lax"))
    return str(begun.headers["location"])


async def may_read(browser: httpx.AsyncClient) -> bool:
    return (await browser.get("/api/openapi.json")).status_code == 200


# --- a real provider ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    """The address of a provider, a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "oidc_provider_mock", "--port", "0", "--require-nonce"],
        text=True, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        limit = threading.Timer(LIMIT_S, process.kill)  # ends the read of its output
        limit.start()
        try:
            assert process.stderr is not None
            said = (re.search(r"running on (http://\S+)", line) for line in process.stderr)
            yield next(found[1] for found in said if found)
        finally:
            limit.cancel()
            process.kill()


async def agree(issuer: str, address: str, user: str, **claims: Any) -> str:
    """Sign in at the real provider; return where it sends the browser."""
    async with httpx.AsyncClient(timeout=LIMIT_S) as browser:
        await browser.put(f"{issuer}/users/{user}", json=claims)
        assert (await browser.get(address)).status_code == 200
        agreed = await browser.post(address, data={"sub": user})
        assert agreed.status_code == 302
        return str(agreed.headers["location"])


async def test_users_of_a_provider_sign_in_with_the_role_of_a_claim(
    real: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "cometmq")
    site = Site(tmp_path, real)
    async with site.browser() as browser:
        page = await browser.get("/topics?search=a")
        assert page.headers["location"] == "/sign-in?next=%2Ftopics%3Fsearch%3Da"
        page = await browser.get(page.headers["location"])
        link = re.search(r'href="(/sign-in/openid\?[^"]+)">Sign in with single sign-on<', page.text)
        assert link
        assert 'name="password"' in page.text
        address = await begin(browser, "/topics?search=a")
        given = parse_qs(urlsplit(address).query)
        assert given["code_challenge_method"] == ["S256"]
        back = await agree(
            real, address, "s-1", groups=["staff", "on-call"], preferred_username="x"
        )
        ended = await browser.get(back)
        assert (ended.status_code, ended.headers["location"]) == (303, "/topics?search=a")
        assert (await browser.get("/api/openapi.json")).status_code == 200
        session = site.console.sign_ins.sessions  # type: ignore[union-attr]
        assert [each.role for each in session._sessions.values()] == [Role.OPERATOR]

        page = await browser.get("/sign-in?out=1")
        shown = await browser.get("/nothing")
        token = re.search(r'name="form_token" value="([^"]+)"', shown.text)
        assert "openid:x" in shown.text
        assert token
        out = await browser.post(
            "/sign-out", data={"form_token": token[1]}, headers={"origin": BASE}
        )
        assert (out.status_code, out.headers["location"]) == (303, "/sign-in?out=1")
        assert not await may_read(browser)
        assert "sign out there, too" in (await browser.get("/sign-in?out=1")).text
        leaving = await browser.get("/sign-in/openid/out")
        assert leaving.headers["location"].startswith(f"{real}/oauth2/end_session?client_id=")

        again = await browser.get(back)  # the code, and its sign-in, are used
        assert again.status_code == 400
        assert not await may_read(browser)
    lines = site.audited()
    assert [(each["user"], each["action"], each["result"]) for each in lines] == [
        ("openid:x", "sign-in", "done"),
        ("openid:x", "sign-out", "done"),
    ]
    assert lines[0]["values"] == {"subject": "s-1"}
    assert {each["address"] for each in lines} == {VISITOR}
    code = parse_qs(urlsplit(back).query)["code"][0]
    assert not any(secret in caplog.text for secret in (SECRET, code))


async def test_who_has_no_role_is_refused_and_local_users_stay_possible(
    real: str, tmp_path: Path
) -> None:
    site = Site(tmp_path, real, user_claim="missing")
    async with site.browser() as browser:
        for claims in (
            {},
            {"groups": ["others"]},
            {"groups": {"staff": 1}},
            {"groups": [["staff"]]},
        ):
            back = await agree(real, await begin(browser), "s-2", **claims)
            refused = await browser.get(back)
            assert (refused.status_code, "no role" in refused.text) == (403, True)
            assert not await may_read(browser)
        given = {"user": "ada", "password": PASSWORD}
        assert (await browser.post("/api/session", json=given)).status_code == 200
        assert await may_read(browser)
    assert {(each["user"], each["result"]) for each in site.audited()} == {
        ("openid:s-2", "refused: no role"), ("ada", "done"),
    }  # fmt: skip


async def test_a_sign_in_by_a_provider_leads_to_no_other_site(real: str, tmp_path: Path) -> None:
    site = Site(tmp_path, real)
    for following in ("//evil.example/", "https://evil.example/", "/nothing", "/sign-in/openid"):
        async with site.browser() as browser:
            address = await begin(browser, following)
            ended = await browser.get(await agree(real, address, "s-3", groups="staff"))
            assert ended.headers["location"] == "/"


# --- hostile providers ----------------------------------------------------------------------------


class Provider:
    """A provider that can be made to lie; it checks what the console sends."""

    def __init__(self) -> None:
        self.key = rsa("1")
        self.shown: list[Any] = [self.key]
        self.codes: dict[str, dict[str, str]] = {}
        self.changed: Change = lambda claims: None
        self.discovery: dict[str, Any] = {}
        self.encode: Callable[[dict[str, Any]], str] = self.signed
        self.user_info: dict[str, Any] = {}
        self.counts = {"/jwks": 0, "/token": 0, WELL_KNOWN: 0}
        self.mistakes: list[str] = []
        self.expected_client: tuple[str, str | None] = CLIENT, SECRET
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.respond(*provider.get(urlsplit(self.path).path, self.headers))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self.respond(*provider.exchange(form, self.headers))

            def respond(self, status: int, body: Any, **headers: str) -> None:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"

    def get(self, path: str, headers: Any) -> tuple[int, Any]:
        if path == WELL_KNOWN:
            self.counts[path] += 1
            pages = {"authorization": "/auth", "token": "/token", "userinfo": "/user"}
            found = {f"{name}_endpoint": self.issuer + path for name, path in pages.items()}
            jwks = f"{self.issuer}/jwks"
            return 200, {"issuer": self.issuer, "jwks_uri": jwks, **found, **self.discovery}
        if path == "/jwks":
            self.counts[path] += 1
            return 200, KeySet(self.shown).as_dict(private=False)
        if path == "/user" and headers["Authorization"] == "Bearer access":
            return 200, self.user_info
        return 404, {}

    def exchange(self, form: dict[str, str], headers: Any) -> tuple[int, Any]:
        self.counts["/token"] += 1
        begun = self.codes.pop(form["code"], None)
        if begun is None:
            return 400, {"error": "invalid_grant"}
        verifier = form["code_verifier"].encode()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier).digest()).rstrip(b"=")
        basic = headers.get("Authorization", "").removeprefix("Basic ")
        self.client = form.get("client_id"), form.get("client_secret")
        if basic:
            client, _, secret = base64.b64decode(basic).decode().partition(":")
            assert self.client == (None, None)
            self.client = unquote_plus(client), unquote_plus(secret)
        expected = {
            "challenge": challenge.decode() == begun["code_challenge"],
            "client": self.client == self.expected_client,
            "redirect": form["redirect_uri"] == begun["redirect_uri"] == BASE + BACK,
        }
        self.mistakes += [name for name, holds in expected.items() if not holds]
        now = round(time.time())
        claims: dict[str, Any] = {
            "iss": self.issuer, "aud": CLIENT, "sub": "s", "nonce": begun["nonce"],
            "iat": now, "exp": now + 60, "groups": ["staff"], "preferred_username": "eve",
        }  # fmt: skip
        self.changed(claims)
        return 200, {"id_token": self.encode(claims), "access_token": "access"}

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def agree(self, address: str, **changes: str) -> str:
        """Sign in; return where the browser is sent."""
        begun = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        code = f"code-{len(self.codes)}-{time.monotonic_ns()}"
        self.codes[code] = begun
        return f"{BACK}?{urlencode({'code': code, 'state': begun['state'], **changes})}"


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    serving = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield made
        assert made.mistakes == []
    finally:
        made.server.shutdown()
        made.server.server_close()
        serving.join()


def other_key(claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": "1"}, claims, rsa("2"))


def unsigned(claims: dict[str, Any]) -> str:
    parts = (json.dumps(each).encode() for each in ({"alg": "none"}, claims))
    return "".join(f"{base64.urlsafe_b64encode(each).decode().rstrip('=')}." for each in parts)


def by_the_secret(claims: dict[str, Any]) -> str:
    key = OctKey.import_key(SECRET.ljust(32, "."))
    return jwt.encode({"alg": "HS256", "kid": "1"}, claims, key)


HOSTILE: dict[str, tuple[Change, Callable[[dict[str, Any]], str] | None]] = {
    "another issuer": (lambda claims: claims.update(iss="https://evil.example"), None),
    "another audience": (lambda claims: claims.update(aud="other"), None),
    "no audience": (lambda claims: claims.pop("aud"), None),
    "audiences of several clients": (lambda claims: claims.update(aud=[CLIENT, "other"]), None),
    "made for another client": (lambda claims: claims.update(azp="other"), None),
    "another nonce": (lambda claims: claims.update(nonce="x"), None),
    "a list of nonces": (lambda claims: claims.update(nonce=[claims["nonce"], "x"]), None),
    "no nonce": (lambda claims: claims.pop("nonce"), None),
    "expired": (lambda claims: claims.update(exp=time.time() - 120), None),
    "no end": (lambda claims: claims.pop("exp"), None),
    "issued in the future": (lambda claims: claims.update(iat=time.time() + 600), None),
    "no subject": (lambda claims: claims.pop("sub"), None),
    "signed by another key": (lambda claims: None, other_key),
    "not signed": (lambda claims: None, unsigned),
    "signed with the client's secret": (lambda claims: None, by_the_secret),
    "no token": (lambda claims: None, lambda claims: "x"),
}


async def test_an_id_token_that_is_not_for_this_sign_in_is_refused(
    provider: Provider, tmp_path: Path
) -> None:
    wrong = {}
    for name, (changed, encode) in HOSTILE.items():
        site = Site(tmp_path, provider.issuer)
        provider.changed, provider.encode = changed, encode or provider.signed
        async with site.browser() as browser:
            refused = await browser.get(provider.agree(await begin(browser)))
            entered = await may_read(browser)
            if refused.status_code != 403 or entered or "ID token" not in refused.text:
                wrong[name] = refused.status_code, refused.text
    assert wrong == {}
    results = [each["result"] for each in site.audited()]
    assert len(results) == len(HOSTILE)
    assert all(each.startswith("refused: the ID token") for each in results)


async def test_clocks_may_differ_and_claims_may_be_deep_or_elsewhere(
    provider: Provider, tmp_path: Path
) -> None:
    def late(claims: dict[str, Any]) -> None:
        now = time.time()
        claims.update(exp=now - 30, iat=now + 30, azp=CLIENT, aud=[CLIENT, "other"])
        del claims["groups"]

    provider.changed = late
    provider.user_info = {"sub": "s", "realm": {"roles": ["operations", 7]}, "iss": "x"}
    site = Site(tmp_path, provider.issuer, roles_claim="realm.roles")
    async with site.browser() as browser:
        ended = await browser.get(provider.agree(await begin(browser), iss=provider.issuer))
        assert (ended.status_code, ended.headers["location"]) == (303, "/")
        assert (await browser.get("/api/audit")).status_code == 200  # of administrators
    provider.user_info["sub"] = "another"
    async with site.browser() as browser:
        refused = await browser.get(provider.agree(await begin(browser)))
        assert (refused.status_code, await may_read(browser)) == (403, False)


async def test_the_console_names_itself_as_the_provider_expects(
    provider: Provider, tmp_path: Path
) -> None:
    ways = {
        "in the head": (SECRET, {}),
        "in the form": (SECRET, {"token_endpoint_auth_methods_supported": ["client_secret_post"]}),
        "without a secret": ("", {}),
    }
    for name, (secret, discovery) in ways.items():
        provider.discovery, provider.expected_client = discovery, (CLIENT, secret or None)
        async with Site(tmp_path, provider.issuer, secret=secret).browser() as browser:
            ended = await browser.get(provider.agree(await begin(browser)))
            assert ended.status_code == 303, name


async def test_a_response_is_taken_once_in_the_browser_that_began(
    provider: Provider, tmp_path: Path
) -> None:
    site = Site(tmp_path, provider.issuer)
    async with site.browser() as browser, site.browser() as other:
        back = provider.agree(await begin(browser))
        cookies = dict(browser.cookies)
        for changes in ({"state": "x"}, {"state": ""}):
            wrong = provider.agree(await begin(other), **changes)
            assert (await other.get(wrong)).status_code == 400
        await begin(other)
        assert (await other.get(back)).status_code == 400  # begun elsewhere
        other.cookies.clear()
        assert (await other.get(back)).status_code == 400
        for name, value in cookies.items():
            mac, _, rest = value.strip('"').partition(".")
            other.cookies.set(name, f"{mac}.x{rest}")
        assert (await other.get(back)).status_code == 400  # changed
        assert provider.counts["/token"] == 0

        assert (await browser.get(back)).status_code == 303
        assert await may_read(browser)
        other.cookies.clear()
        for name, value in cookies.items():  # a thief of address and cookie comes too late
            other.cookies.set(name, value.strip('"'))
        assert (await other.get(back)).status_code == 400
        assert provider.counts["/token"] == 1
        assert not await may_read(other)


async def test_what_the_provider_refuses_is_named(provider: Provider, tmp_path: Path) -> None:
    site = Site(tmp_path, provider.issuer)
    cases = {
        "provider says access_denied": {"error": "access_denied"},
        "another provider": {"iss": "https://evil.example"},
        "400 invalid_grant": {"code": "replayed"},
        "no code": {"code": ""},
    }
    async with site.browser() as browser:
        for text, changes in cases.items():
            refused = await browser.get(provider.agree(await begin(browser), **changes))
            assert refused.status_code in (403, 502), text
            assert text in refused.text
        for _ in range(ATTEMPTS_MAX - len(cases)):
            await browser.get(provider.agree(await begin(browser), code="x"))
        exchanged = provider.counts["/token"]
        refused = await browser.get(provider.agree(await begin(browser)))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        assert provider.counts["/token"] == exchanged
    assert len(site.audited()) == ATTEMPTS_MAX


async def test_new_keys_of_the_provider_are_read_but_not_for_each_token(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, provider.issuer)

    async def sign_in() -> int:
        async with site.browser() as browser:
            return (await browser.get(provider.agree(await begin(browser)))).status_code

    assert [await sign_in(), await sign_in()] == [303, 303]
    assert provider.counts["/jwks"] == 1
    provider.key = rsa("2")
    provider.shown = [ECKey.generate_key("P-256", {"kid": "e"}), provider.key]
    assert [await sign_in(), provider.counts["/jwks"]] == [403, 1]  # too soon after the last time
    monkeypatch.setattr(provider_module, "REFRESH_S", 0.0)
    assert [await sign_in(), provider.counts["/jwks"]] == [303, 2]
    assert [await sign_in(), provider.counts["/jwks"]] == [303, 2]


@pytest.mark.parametrize(
    ("discovery", "text"),
    [
        ({"issuer": "https://evil.example"}, "https://evil.example, expected http://127.0.0.1:"),
        ({"token_endpoint": "http://evil.example/token"}, "token_endpoint of the provider is not"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri of the provider is not https"),
        ({"authorization_endpoint": 7}, "configuration of the provider is malformed"),
        ({"padding": "x" * provider_module.RESPONSE_BYTES_MAX}, "more than 262144 bytes"),
    ],
)
async def test_a_configuration_that_cannot_be_trusted_ends_the_sign_in(
    provider: Provider,
    tmp_path: Path,
    discovery: dict[str, Any],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider.discovery = discovery
    site = Site(tmp_path, provider.issuer)
    async with site.browser() as browser:
        refused = await browser.get("/sign-in/openid")
        assert (refused.status_code, text in refused.text) == (502, True), refused.text
        assert text in (await browser.get("/sign-in/openid")).text
        assert provider.counts[WELL_KNOWN] == 1  # not for each visitor
        provider.discovery = {}
        monkeypatch.setattr(provider_module, "RETRY_S", 0.0)
        await begin(browser)  # once it is right, without a restart


async def test_without_local_users_there_is_no_password_to_guess(tmp_path: Path) -> None:
    table = {"issuer": "https://login.example", "client_id": "c", "roles": {"reader": ["a"]}}
    settings = settings_of({"console": {"base_url": BASE, "openid": table}}, None, {})
    with pytest.raises(ConfigError, match="expected --audit-log"):
        check(Options("0.0.0.0", settings=settings))
    accounts = {"accounts": {"reader": {"access_key": "r"}}}
    secret = {"COMETMQ_CONSOLE_READER_SECRET": "s"}
    with pytest.raises(ConfigError, match=r"\[console.accounts\] without --users"):
        check(Options(settings=settings_of({"console": accounts}, None, secret)))
    options = Options("0.0.0.0", audit_log=tmp_path / "audit.log", settings=settings)
    console = Console(AdminClient("127.0.0.1:1"), options)
    transport = httpx.ASGITransport(proxied(console.app))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as browser:
        page = await browser.get("/sign-in")
        assert ("Sign in with" in page.text, "password" in page.text) == (True, False)
        given = {"user": "ada", "password": PASSWORD}
        assert (await browser.post("/api/session", json=given)).status_code == 403
        assert not await may_read(browser)


async def test_a_provider_that_is_away_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        issuer = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with Site(tmp_path, issuer).browser() as browser:
        refused = await browser.get("/sign-in/openid")
        assert (refused.status_code, "cannot be reached" in refused.text) == (502, True)
