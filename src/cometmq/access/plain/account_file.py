"""One YAML file of accounts: read, changed and written as a whole.

Every scalar is text: ``secretKey: 12345678`` is the text ``12345678``, as in RocketMQ. No error
shows content of a file, because it may be a secret key.

Source: PlainPermissionManager and PlainAccessData, RocketMQ 4.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cometmq.access.plain.account import AccountEntry, PlainAccount
from cometmq.access.plain.addresses import AddressSet
from cometmq.model.errors import ConfigError
from cometmq.protocol.bodies.common import DataVersion

try:
    import yaml  # type: ignore[import-untyped]
except ModuleNotFoundError:
    raise ConfigError("access control needs PyYAML: pip install '.[acl]'") from None

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
ACCOUNTS_MAX: Final = 20_000
LEVELS_MAX: Final = 32
_ADDRESSES, _ACCOUNTS, _VERSION = "globalWhiteRemoteAddresses", "accounts", "dataVersion"
_TEXTS: Final = {
    "accessKey": "access_key",
    "secretKey": "secret_key",
    "whiteRemoteAddress": "white_remote_address",
    "defaultTopicPerm": "default_topic_perm",
    "defaultGroupPerm": "default_group_perm",
    "autoCreate": "auto_create",
}
_LISTS: Final = {"topicPerms": "topic_perms", "groupPerms": "group_perms"}
_KNOWN: Final = frozenset({*_TEXTS, *_LISTS, "admin"})

Document = dict[str, Any]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads every scalar as text, except null and an empty value, which are None.

    It counts levels itself: PyYAML before 6.0.4 overflows the stack of the process instead.
    """

    _levels = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        self._levels += 1
        if self._levels > LEVELS_MAX:
            raise ConfigError(f"nested more than {LEVELS_MAX} levels deep, expected lists of texts")

    def ascend_resolver(self) -> None:
        self._levels -= 1


_Loader.yaml_implicit_resolvers = {
    first: kept
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    if (kept := [each for each in found if each[0].rpartition(":")[2] in ("null", "merge")])
}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes without anchors: two accounts may have equal lists."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class AccountFile(msgspec.Struct, frozen=True):
    """The content of one file."""

    document: Document
    """As it was read, with what only the user's other tools understand."""
    accounts: Mapping[str, PlainAccount]
    """By access key."""
    addresses: Sequence[str]
    """The addresses from which no request needs an account."""
    white: AddressSet
    version: DataVersion
    """How often requests have changed the file."""

    def entry(self, access_key: str) -> AccountEntry | None:
        """Return an account as the file says it."""
        found = _find(self.document, access_key)
        return None if found is None else _entry(found)

    def entries(self) -> list[AccountEntry]:
        """Return all accounts as the file says them."""
        return [_entry(found) for found in self.document.get(_ACCOUNTS) or []]

    def __repr__(self) -> str:
        """Return a text without secret keys."""
        return f"<AccountFile accounts={len(self.accounts)}>"


def parse(data: bytes) -> AccountFile:
    """Read a file.

    Raises:
        ConfigError: it is no YAML, or has something else than accounts; the text shows no content
            but access keys, permissions and addresses.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{len(data)} bytes, expected at most {FILE_BYTES_MAX}")
    try:
        document = yaml.load(data.decode(), _Loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"not YAML{where}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError("not YAML, or not UTF-8") from None
    return of_document({} if document is None else document)


def of_document(document: Any) -> AccountFile:
    """Return the file with this content.

    Raises:
        ConfigError: see `parse`.
    """
    if not isinstance(document, dict):
        raise ConfigError(f"expected the keys {_ADDRESSES} and {_ACCOUNTS}, met a list or a text")
    addresses = _texts(_ADDRESSES, document.get(_ADDRESSES)) or []
    found = document.get(_ACCOUNTS) or []
    if not isinstance(found, list) or len(found) > ACCOUNTS_MAX:
        raise ConfigError(f"{_ACCOUNTS}: expected a list of at most {ACCOUNTS_MAX} accounts")
    accounts: dict[str, PlainAccount] = {}
    for number, each in enumerate(found, 1):
        if not isinstance(each, dict):
            raise ConfigError(f"account {number}: expected keys and values")
        entry = _entry(each)
        if "admin" in each:
            each["admin"] = entry.admin  # every scalar of the file was read as text
        if not entry.access_key or not entry.secret_key:
            raise ConfigError(f"account {number}: expected an accessKey and a secretKey")
        if entry.access_key in accounts:
            raise ConfigError(f"accessKey {entry.access_key[:100]!r} is there twice")
        accounts[entry.access_key] = PlainAccount(entry)
    return AccountFile(document, accounts, addresses, AddressSet(addresses), _version(document))


def with_account(file: AccountFile, entry: AccountEntry, now_ms: int) -> Document:
    """Return the content with an account added or replaced."""
    raw: Document = {"accessKey": entry.access_key, "secretKey": entry.secret_key}
    for name, attribute in (*_TEXTS.items(), *_LISTS.items()):
        value = getattr(entry, attribute)
        if value or (value is not None and name in _LISTS):
            raw[name] = value
    raw["admin"] = entry.admin
    old = _find(file.document, entry.access_key)
    further = {name: value for name, value in (old or {}).items() if name not in _KNOWN}
    others = [each for each in file.document.get(_ACCOUNTS) or [] if each is not old]
    return _changed(file, {_ACCOUNTS: [*others, raw | further]}, now_ms)


def without_account(file: AccountFile, access_key: str, now_ms: int) -> Document:
    """Return the content without an account."""
    old = _find(file.document, access_key)
    others = [each for each in file.document.get(_ACCOUNTS) or [] if each is not old]
    return _changed(file, {_ACCOUNTS: others}, now_ms)


def with_addresses(file: AccountFile, addresses: Sequence[str], now_ms: int) -> Document:
    """Return the content with other white addresses."""
    return _changed(file, {_ADDRESSES: list(addresses)}, now_ms)


def render(document: Document) -> bytes:
    """Return the text of a content."""
    text: str = yaml.dump(document, Dumper=_Dumper, allow_unicode=True, sort_keys=False)
    return text.encode()


def _changed(file: AccountFile, changes: Document, now_ms: int) -> Document:
    version = file.version.next(now_ms)
    shown = {"counter": version.counter, "timestamp": version.timestamp}
    return file.document | changes | {_VERSION: [shown]}


def _find(document: Document, access_key: str) -> Document | None:
    accounts: list[Document] = document.get(_ACCOUNTS) or []
    return next((each for each in accounts if each.get("accessKey") == access_key), None)


def _entry(found: Document) -> AccountEntry:
    values: dict[str, Any] = {"admin": _text("admin", found.get("admin")).lower() == "true"}
    for name, attribute in _TEXTS.items():
        values[attribute] = _text(name, found.get(name))
    for name, attribute in _LISTS.items():
        values[attribute] = _texts(name, found.get(name))
    return AccountEntry(**values)


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        raise ConfigError(f"{name}: expected a text")
    return value


def _texts(name: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ConfigError(f"{name}: expected a list")
    return [_text(name, item) for item in value]


def _version(document: Document) -> DataVersion:
    """Return the version that requests count; one that cannot be read counts from 0."""
    found = document.get(_VERSION)
    first = found[0] if isinstance(found, list) and found else None
    if not isinstance(first, dict):
        return DataVersion()
    numbers = {}
    for name in ("counter", "timestamp"):
        text = str(first.get(name, ""))
        numbers[name] = int(text) if text.isdecimal() and len(text) <= 18 else 0
    return DataVersion(**numbers)
