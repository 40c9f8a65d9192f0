"""A provider of OpenID Connect: discovery, keys, the code of a sign-in, and the ID token.

joserfc checks signatures and claims. Each request to the provider has a limit of time and of bytes,
follows no redirect, and goes to https or to loopback only. Tokens and secrets are never logged.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import msgspec
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from cometmq.console.config import OpenIdSettings, is_safe_address
from cometmq.console.pages import Role
from cometmq.model.errors import CometError, ConfigError
from cometmq.system.log_format import printable

REQUEST_S = 10.0
RESPONSE_BYTES_MAX = 256 * 1024
HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
KEPT_S = 3_600.0
"""For how long the configuration of the provider and its keys are kept."""
RETRY_S = 3.0
"""After a failure the configuration is not read again for this long, however many begin."""
REFRESH_S = 30.0
"""Keys are read again for a token with an unknown key, but not more often than this."""
SKEW_S = 60
"""How much the clocks of the provider and of the console may differ."""
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
"""Algorithms of asymmetric keys: not ``none``, nor HMAC, whose key would be the client's secret."""
NAME_MAX = 64
VALUES_MAX = 10_000
WELL_KNOWN = "/.well-known/openid-configuration"


class ProviderError(CometError):
    """The provider does not respond as expected."""


class TokenError(CometError):
    """What the provider says about a user cannot be trusted, or is too little."""


class Identity(NamedTuple):
    """A user of the provider."""

    name: str
    subject: str
    role: Role | None


class Metadata(msgspec.Struct):
    """The parts of the provider's configuration that are used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False

    def check(self, issuer: str) -> None:
        """Raise a `ProviderError` if the provider is another one, or an address is not safe."""
        if self.issuer != issuer:
            raise ProviderError(
                f"the provider says that it is {printable(self.issuer):.200}, expected {issuer}"
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_safe_address(getattr(self, name)):
                raise ProviderError(f"the {name} of the provider is not https")
        for name in ("userinfo_endpoint", "end_session_endpoint"):
            if getattr(self, name) and not is_safe_address(getattr(self, name)):
                raise ProviderError(f"the {name} of the provider is not https")


class Tokens(msgspec.Struct):
    """The response to a code."""

    id_token: str
    access_token: str = ""


class Provider:
    """The provider.

    Args:
        settings: of the provider.
        redirect: the address to which the provider sends browsers back.

    Raises:
        ConfigError: the file of authorities cannot be used.
    """

    def __init__(self, settings: OpenIdSettings, redirect: str) -> None:
        self._settings = settings
        self._redirect = redirect
        self._context = _context(settings)
        self._lock = asyncio.Lock()
        self._metadata: tuple[float, Metadata] | None = None
        self._failure: tuple[float, ProviderError] | None = None
        self._keys: tuple[float, KeySet] | None = None

    async def metadata(self) -> Metadata:
        """Return the provider's configuration.

        Raises:
            ProviderError: it cannot be read, or is of another provider.
        """
        async with self._lock:
            if self._metadata is None or time.monotonic() - self._metadata[0] > KEPT_S:
                if self._failure is not None and time.monotonic() - self._failure[0] < RETRY_S:
                    raise ProviderError(str(self._failure[1]))
                try:
                    found = await self._read_metadata()
                except ProviderError as error:
                    self._failure = time.monotonic(), error
                    raise
                self._metadata = time.monotonic(), found
            return self._metadata[1]

    async def _read_metadata(self) -> Metadata:
        issuer = self._settings.issuer
        body = await self._fetch("GET", issuer.rstrip("/") + WELL_KNOWN)
        found: Metadata = _decoded(body, Metadata, "configuration")
        found.check(issuer)
        return found

    async def sign_in_address(self, state: str, nonce: str, challenge: str) -> str:
        """Return where a browser begins the sign-in.

        Args:
            state: that the browser brings back.
            nonce: that the ID token must have.
            challenge: the SHA-256 of the verifier, as PKCE has it.
        """
        begin = (await self.metadata()).authorization_endpoint
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(begin, query)

    async def sign_out_address(self, back: str) -> str | None:
        """Return where a browser ends its session at the provider; None if it has no such page."""
        end = (await self.metadata()).end_session_endpoint
        query = {"client_id": self._settings.client_id, "post_logout_redirect_uri": back}
        return _with_query(end, query) if end else None

    async def identity(self, code: str, verifier: str, nonce: str) -> Identity:
        """Return the user for whom a code was given.

        Args:
            code: which the browser has brought.
            verifier: of PKCE.
            nonce: that the ID token must have.

        Raises:
            ProviderError: the provider refuses the code, or does not respond as expected.
            TokenError: the ID token is not one for this sign-in.
        """
        metadata = await self.metadata()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "code_verifier": verifier,
        }
        headers = {}
        client, secret = self._settings.client_id, self._settings.secret
        if secret and "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(client)}:{quote_plus(secret)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        else:
            fields["client_id"] = client
            if secret:
                fields["client_secret"] = secret
        body = await self._fetch("POST", metadata.token_endpoint, data=fields, headers=headers)
        tokens = _decoded(body, Tokens, "response to the code")
        claims = await self._claims(tokens.id_token, nonce)
        values = claim_of(claims, self._settings.roles_claim)
        if values is None and metadata.userinfo_endpoint and tokens.access_token:
            more = await self._user_info(metadata.userinfo_endpoint, tokens.access_token)
            if more.get("sub") != claims["sub"]:
                raise TokenError("the provider has given information about another user")
            claims = more | claims
            values = claim_of(claims, self._settings.roles_claim)
        name = claims.get(self._settings.user_claim)
        if not isinstance(name, str) or not name.strip():
            name = str(claims["sub"])
        role = self._settings.roles.role_of(texts_of(values))
        return Identity(printable(name.strip())[:NAME_MAX], claims["sub"], role)

    async def _user_info(self, address: str, access_token: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {access_token}"}
        body = await self._fetch("GET", address, headers=headers)
        found: dict[str, Any] = _decoded(body, dict[str, Any], "user information")
        return found

    async def _claims(self, id_token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token, which is checked.

        Raises:
            TokenError: it is not one for this sign-in.
        """
        try:
            try:
                token = jwt.decode(id_token, await self._key_set(KEPT_S), ALGORITHMS)
            except (InvalidKeyIdError, BadSignatureError):  # the provider may have changed its keys
                token = jwt.decode(id_token, await self._key_set(REFRESH_S), ALGORITHMS)
            check_claims(token.claims, self._settings.issuer, self._settings.client_id, nonce)
        except JoseError as error:
            raise TokenError(f"the ID token is not valid: {error}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise TokenError(f"the ID token is not valid: {type(error).__name__}") from None
        return token.claims

    async def _key_set(self, age_s: float) -> KeySet:
        """Return the keys of the provider, at most this old."""
        address = (await self.metadata()).jwks_uri
        async with self._lock:
            if self._keys is None or time.monotonic() - self._keys[0] > age_s:
                found = _decoded(await self._fetch("GET", address), dict[str, Any], "keys")
                try:
                    keys = KeySet.import_key_set(found)
                except (JoseError, ValueError, TypeError, KeyError) as error:
                    raise ProviderError(
                        f"the keys of the provider cannot be used: {type(error).__name__}"
                    ) from None
                self._keys = time.monotonic(), keys
            return self._keys[1]

    async def _fetch(
        self, method: str, address: str, *,
        headers: Mapping[str, str] | None = None, data: Mapping[str, str] | None = None,
    ) -> bytes:  # fmt: skip
        """Return the body of a response.

        Raises:
            ProviderError: there is none, it is too large, or says that something is wrong.
        """
        where = f"the provider at {urlsplit(address).netloc}"
        body = b""
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(REQUEST_S),
                    auto_decompress=False,
                    trust_env=True,  # proxies
                ) as session,
                session.request(
                    method, address, headers={**HEADERS, **(headers or {})}, data=data,
                    allow_redirects=False, ssl=self._context,
                ) as response,
            ):  # fmt: skip
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise ProviderError(f"{where} has compressed its response, expected none")
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > RESPONSE_BYTES_MAX:
                        raise ProviderError(
                            f"{where} has sent more than {RESPONSE_BYTES_MAX} bytes"
                        )
        except TimeoutError:
            raise ProviderError(f"{where} did not respond within {REQUEST_S:.0f} s") from None
        except (aiohttp.ClientError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise ProviderError(f"{where} cannot be reached: {printable(text)[:200]}") from None
        if response.status != 200:
            raise ProviderError(f"{where} refuses: {response.status} {_reason(body)}".strip())
        return body


def check_claims(claims: Mapping[str, Any], issuer: str, client_id: str, nonce: str) -> None:
    """Check the claims of an ID token.

    Raises:
        JoseError: they are of another provider, client or sign-in, or of another time.
        TokenError: the token was made for another client.
    """
    jwt.JWTClaimsRegistry(
        leeway=SKEW_S,
        iss={"essential": True, "value": issuer},
        sub={"essential": True},
        aud={"essential": True, "value": client_id},
        exp={"essential": True},
        iat={"essential": True},
        nonce={"essential": True, "value": nonce},
    ).validate(dict(claims))
    audience, party = claims["aud"], claims.get("azp")
    if isinstance(claims["nonce"], list):
        raise TokenError("the ID token has several nonces, expected one")
    if party != client_id and (party is not None or (isinstance(audience, list) and audience[1:])):
        raise TokenError("the ID token was made for another client")


def claim_of(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its name, or by a path with dots; None if there is none."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def texts_of(values: Any) -> set[str]:
    """Return the values of a claim that is a text or a list of texts."""
    if isinstance(values, str):
        return {values}
    listed = values[:VALUES_MAX] if isinstance(values, list) else []
    return {each for each in listed if isinstance(each, str)}


def _decoded(body: bytes, kind: Any, noun: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ProviderError(f"the {noun} of the provider is malformed: {error}") from None


def _reason(body: bytes) -> str:
    """Return the short error of a response, as OAuth 2.0 has it."""
    try:
        error = msgspec.json.decode(body, type=dict[str, Any]).get("error", "")
    except msgspec.DecodeError:
        return ""
    return printable(error)[:80] if isinstance(error, str) else ""


def _with_query(address: str, query: Mapping[str, str]) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"


def _context(settings: OpenIdSettings) -> ssl.SSLContext | bool:
    if not settings.ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        raise ConfigError(f"{settings.ca_file}: {error}; expected authorities, PEM") from None
