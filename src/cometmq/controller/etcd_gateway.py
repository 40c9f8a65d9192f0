"""A client of etcd over its JSON gateway, which every etcd from 3.4 on serves on its client port.

Several endpoints are one cluster: a call goes to the endpoint that responded last, and to the next
ones if it fails. A transaction goes to another endpoint only if none has received it: one that was
sent may have been applied, and a second try would compare with the result of the first one.

Integers of 64 bits are text in its JSON, keys and values are base64, and fields with the value 0,
false or empty are left out.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.controller.config import EtcdSettings
from cometmq.controller.etcd import (
    Compare,
    Delete,
    EtcdUnavailableError,
    KeyValue,
    Operation,
)
from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError
from cometmq.remoting.tls import client_context, failure_text
from cometmq.system.settings import ADDRESS, describe

try:
    import aiohttp
except ModuleNotFoundError:
    raise ConfigError("a controller needs aiohttp: pip install '.[controller]'") from None

SCHEME: Final = "etcd://"
CALL_S: Final = 2.0
"""A call ends after this time, whatever the number of endpoints."""
CONNECT_S: Final = 0.5

INVALID, NOT_FOUND, UNAVAILABLE, UNAUTHENTICATED = 3, 5, 14, 16
"""Codes of gRPC."""
TOKEN_REFUSED = ("invalid auth token", "revision of auth store is old", "user name is empty")
KEYS: Final = {known.name: known.key for known in describe(EtcdSettings)}


def open_gateway(settings: EtcdSettings) -> EtcdGateway:
    """Return a client of etcd; it connects with its first call.

    Raises:
        ConfigError: the addresses have another form, or a file cannot be used.
    """
    addresses, tls, password = endpoints_of(settings.store), None, ""
    if settings.trusted:
        tls = client_context(
            trusted=settings.trusted,
            certificate=settings.certificate,
            key=settings.key,
            key_password=settings.key_password,
            names=KEYS,
        )
    elif settings.certificate:
        raise ConfigError(f"{KEYS['certificate']} needs {KEYS['trusted']}, which is not set")
    if settings.user:
        password = _password(settings.password_file)
    return EtcdGateway(addresses, tls=tls, user=settings.user or None, password=password)


def _password(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{KEYS['password_file']}={file}: expected a file with the password of"
            f" {KEYS['user']}: {type(error).__name__}"
        ) from None


def endpoints_of(store: str) -> list[str]:
    """Return the addresses in a value of ``controllerStore``.

    Raises:
        ConfigError: it does not have the form ``etcd://host:port,host:port``.
    """
    addresses = [part.strip() for part in store.removeprefix(SCHEME).split(",")]
    if not store.startswith(SCHEME) or not all(map(ADDRESS.fullmatch, addresses)):
        raise ConfigError(
            f"controllerStore={store}: expected the addresses of etcd, {SCHEME}host:port,host:port"
        )
    return addresses


class _RefusedError(Exception):
    """etcd responded with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"etcd refused the call with code {code}: {message}")
        self.code = code
        self.message = message


class EtcdGateway:
    """Calls etcd; it keeps what `cometmq.controller.etcd.Etcd` promises.

    Args:
        addresses: of the members of the cluster, ``host:port``.
        tls: how to verify them, or None for plain connections.
        user: the name at etcd, or None without authentication.
        password: of the user.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        user: str | None = None,
        password: str = "",
    ) -> None:
        scheme = "http" if tls is None else "https"
        self._endpoints = deque(f"{scheme}://{address}" for address in addresses)
        self._tls = tls
        self._user = user
        self._password = password
        self._token: str | None = None
        self._session: aiohttp.ClientSession | None = None

    async def get(self, key: str) -> KeyValue | None:
        """Return a key, or None if it does not exist."""
        found = _key_values(await self._call("/v3/kv/range", {"key": _b64(key)}))
        return found[0] if found else None

    async def range(self, prefix: str) -> Sequence[KeyValue]:
        """Return all keys with a prefix."""
        start = prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        payload = {"key": _b64(start), "range_end": _b64(end)}
        return _key_values(await self._call("/v3/kv/range", payload))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        """Apply the operations if all conditions hold, and return whether they were applied."""
        payload = {
            "compare": [
                {
                    "key": _b64(compare.key),
                    "target": "MOD",
                    "result": "EQUAL",
                    "mod_revision": str(compare.mod_revision),
                }
                for compare in compares
            ],
            "success": [_operation(operation) for operation in operations],
        }
        try:
            response = await self._call("/v3/kv/txn", payload, repeatable=False)
        except _RefusedError as refusal:
            if refusal.code == NOT_FOUND:  # the lease of a put
                return False
            raise EtcdUnavailableError(str(refusal)) from None
        return bool(response.get("succeeded", False))

    async def grant(self, ttl_s: int) -> int:
        """Return the id of a new lease."""
        return int((await self._call("/v3/lease/grant", {"TTL": str(ttl_s)}))["ID"])

    async def keep_alive(self, lease: int) -> bool:
        """Prolong a lease; False if it has ended."""
        response = await self._call("/v3/lease/keepalive", {"ID": str(lease)})
        return int(response.get("result", {}).get("TTL", 0)) > 0

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys."""
        try:
            await self._call("/v3/lease/revoke", {"ID": str(lease)}, refusals=True)
        except _RefusedError as refusal:
            if refusal.code != NOT_FOUND:
                raise EtcdUnavailableError(str(refusal)) from None

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _call(
        self, path: str, payload: dict[str, Any], *, repeatable: bool = True, refusals: bool = False
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(CALL_S):
                try:
                    return await self._authenticated(path, payload, repeatable)
                except _RefusedError as refusal:
                    if self._user is None or not _refuses_token(refusal):
                        raise
                    # etcd checks the token before it applies anything, so a second try is safe.
                    self._token = None
                    return await self._authenticated(path, payload, repeatable)
        except TimeoutError:
            raise EtcdUnavailableError(f"{path}: no response within {CALL_S:g} s") from None
        except _RefusedError as refusal:
            if refusals or not repeatable:
                raise
            raise EtcdUnavailableError(str(refusal)) from None

    async def _authenticated(
        self, path: str, payload: dict[str, Any], repeatable: bool
    ) -> dict[str, Any]:
        if self._user is not None and self._token is None:
            account = {"name": self._user, "password": self._password}
            self._token = str((await self._post("/v3/auth/authenticate", account, True))["token"])
        return await self._post(path, payload, repeatable)

    async def _post(self, path: str, payload: dict[str, Any], repeatable: bool) -> dict[str, Any]:
        """Send a request to one endpoint after the other until one responds."""
        problem: Exception | None = None
        for _ in range(len(self._endpoints)):
            try:
                return await self._post_to(self._endpoints[0], path, payload)
            except (aiohttp.ClientError, OSError) as error:
                problem = error
            except _RefusedError as refusal:
                if refusal.code != UNAVAILABLE or not repeatable:  # it is cut off from its leader
                    raise
                problem = refusal
            except asyncio.CancelledError:
                # The time is over: the next call begins with another endpoint.
                self._endpoints.rotate(-1)
                raise
            self._endpoints.rotate(-1)
            if not repeatable and not isinstance(problem, aiohttp.ClientConnectorError):
                break  # the endpoint may have received it
        why = f"{type(problem).__name__}: {problem}"
        if isinstance(problem, aiohttp.ClientConnectorCertificateError):
            where = host_and_port(problem.host, problem.port or 0)
            why = f"{where}: {failure_text(problem.certificate_error)}"
        raise EtcdUnavailableError(f"{path}: {why}") from None

    async def _post_to(self, endpoint: str, path: str, payload: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = self._token
        async with self._open().post(
            endpoint + path, data=msgspec.json.encode(payload), headers=headers
        ) as response:
            body = await response.read()
            status = response.status
        try:
            found = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise aiohttp.ClientPayloadError(f"status {status} without a JSON body") from None
        if status != 200:
            message = str(found.get("message") or found.get("error"))
            raise _RefusedError(int(found.get("code", 0)), message)
        return found

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls or True, limit=16),
                timeout=aiohttp.ClientTimeout(total=CALL_S, sock_connect=CONNECT_S),
            )
        return self._session


def _refuses_token(refusal: _RefusedError) -> bool:
    return refusal.code == UNAUTHENTICATED or (
        refusal.code == INVALID and any(text in refusal.message for text in TOKEN_REFUSED)
    )


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _operation(operation: Operation) -> dict[str, Any]:
    if isinstance(operation, Delete):
        return {"requestDeleteRange": {"key": _b64(operation.key)}}
    put = {"key": _b64(operation.key), "value": _b64(operation.value)}
    if operation.lease:
        put["lease"] = str(operation.lease)
    return {"requestPut": put}


def _key_values(response: dict[str, Any]) -> list[KeyValue]:
    return [
        KeyValue(
            base64.b64decode(found["key"]).decode(),
            base64.b64decode(found.get("value", "")),
            int(found["mod_revision"]),
        )
        for found in response.get("kvs", [])
    ]
