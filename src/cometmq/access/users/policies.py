"""Policies: what a user may do with which resources, from which addresses.

    resource := Topic:NAME | Group:NAME | Cluster:NAME      a literal name
              | Topic:PRE* | Topic:* | …                    the beginning of names, every name
              | *                                           everything

An entry is about one resource; it allows or denies actions. The custom entries come first; the
default entries count where no custom entry matches. Of the entries that match, the closest one
decides: a literal name before a prefix, a short prefix before a long one, a prefix before every
name of the kind, that before everything; of equal ones a denial. The order in which entries were
created does not count.

A value of the database ``acls``, whose key is the subject ``User:NAME``::

    {"policies":[{"entries":[{"actions":[3,4],"decision":1,"environment":{"sourceIps":["10.0.0.0/8"]},
     "resource":{"resourceName":"T","resourcePattern":2,"resourceType":4}}],"policyType":1}],
     "subject":{"subjectType":1,"username":"NAME"}}

Source: Acl, PolicyEntry, Resource and AclAuthorizationHandler, RocketMQ 5.3. There entries of
different patterns are sorted inconsistently, so that a wide entry which is created later wins.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from typing import Final

import msgspec

from cometmq.access.needs import Action, Need, ResourceType
from cometmq.access.users.user import USER_SUBJECT
from cometmq.model.errors import ConfigError

ENTRIES_MAX: Final = 10_000
"""The limit of the entries of one user."""
SUBJECT_PREFIX: Final = "User:"
_HOSTS_MAX: Final = 10_000
_NETWORKS_MAX: Final = 10_000

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class ActionCode(IntEnum):
    """The actions in the database and, by their names, in requests."""

    ALL = 1
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class ResourceTypeCode(IntEnum):
    """The types of resources in the database and, by their names, in requests."""

    UNKNOWN = 0
    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class Pattern(IntEnum):
    """How an entry names its resource; the database has these numbers."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class PolicyType(IntEnum):
    """The precedence of entries; the numbers are RocketMQ's, as the database has them."""

    CUSTOM = 1
    DEFAULT = 2


class Decision(IntEnum):
    """The decision of an entry; the numbers are RocketMQ's, as the database has them."""

    ALLOW = 1
    DENY = 2


_ACTIONS: Final = {each.name.lower(): each for each in ActionCode}
_TYPES: Final = {
    each.name.lower(): each
    for each in ResourceTypeCode
    if each not in (ResourceTypeCode.UNKNOWN, ResourceTypeCode.ANY)
}
_POLICY_TYPES: Final = {each.name.lower(): each for each in PolicyType}
_DECISIONS: Final = {each.name.lower(): each for each in Decision}
_EVERY_ACTION: Final = sum(Action)
_MASKS: Final = {
    each: _EVERY_ACTION if each == ActionCode.ALL else int(Action[each.name]) for each in ActionCode
}
_TYPE_CODES: Final = {
    ResourceType.TOPIC: ResourceTypeCode.TOPIC,
    ResourceType.GROUP: ResourceTypeCode.GROUP,
    ResourceType.CLUSTER: ResourceTypeCode.CLUSTER,
}
_CLOSENESS: Final = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


def policy_type(text: str | None) -> PolicyType:
    """Return the type of policies of a name, in any case; the custom one for another text."""
    return _POLICY_TYPES.get((text or "").lower(), PolicyType.CUSTOM)


class Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The resource of an entry."""

    resource_name: str | None = None
    resource_pattern: Pattern
    resource_type: ResourceTypeCode

    @classmethod
    def of(cls, kind: ResourceTypeCode, pattern: Pattern, name: str | None = None) -> Resource:
        """Return a resource; one of a pattern for every name has none."""
        return cls(resource_name=name, resource_pattern=pattern, resource_type=kind)

    @classmethod
    def parse(cls, key: str | None) -> Resource:
        """Return the resource of a key such as ``Topic:orders*``.

        A star that is not the end of the name is refused: RocketMQ takes ``Topic:a*b*`` for
        ``Topic:a*``, which opens more than it reads.

        Raises:
            ConfigError: it is none.
        """
        text = key or ""
        if text == "*":
            return cls.of(ResourceTypeCode.ANY, Pattern.ANY)
        kind_text, found, name = text.partition(":")
        kind = _TYPES.get(kind_text.lower())
        if kind is None or not found or not name or "*" in name[:-1]:
            raise ConfigError(
                f"the resource {text[:200]!r} is none: expected *, or Topic:NAME, Group:NAME or"
                " Cluster:NAME, where NAME may end with * and has no other one"
            )
        if name == "*":
            return cls.of(kind, Pattern.ANY)
        if name.endswith("*"):
            return cls.of(kind, Pattern.PREFIXED, name.partition("*")[0])
        return cls.of(kind, Pattern.LITERAL, name)

    @property
    def key(self) -> str:
        """The text that `parse` reads."""
        if self.resource_type == ResourceTypeCode.ANY:
            return "*"
        end = "" if self.resource_pattern == Pattern.LITERAL else "*"
        name = "" if self.resource_pattern == Pattern.ANY else self.resource_name or ""
        return f"{self.resource_type.name.capitalize()}:{name}{end}"

    @property
    def closeness(self) -> tuple[int, int, int]:
        """Sorts the entries that match: the closest one first."""
        name = self.resource_name or ""
        is_everything = self.resource_type == ResourceTypeCode.ANY
        # A short prefix comes before a long one, as in RocketMQ.
        return int(is_everything), _CLOSENESS[self.resource_pattern], len(name)


class Environment(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The addresses from which requests come."""

    source_ips: tuple[str, ...] | None = None


class PolicyEntry(msgspec.Struct, frozen=True, rename="camel"):
    """The entry of a policy about one resource."""

    actions: tuple[ActionCode, ...]
    decision: Decision
    environment: Environment
    resource: Resource

    @classmethod
    def parse(
        cls,
        resource: str | None,
        actions: Sequence[str] | None,
        source_ips: Sequence[str] | None,
        decision: str | None,
    ) -> PolicyEntry:
        """Return an entry as a request describes it; names may be in any case.

        Raises:
            ConfigError: the entry is none; the text names what is wrong.
        """
        known = [_ACTIONS.get(action.lower()) for action in actions or ()]
        if not known or None in known:
            expected = ", ".join(each.name.capitalize() for each in ActionCode)
            met = ",".join(actions or ())[:200]
            raise ConfigError(f"the actions {met!r} are none: expected some of {expected}")
        decided = _DECISIONS.get((decision or "").lower())
        if decided is None:
            raise ConfigError(f"the decision {decision!r:.200} is none: expected Allow or Deny")
        for text in source_ips or ():
            _network(text)
        return cls(
            tuple(action for action in known if action is not None),
            decided,
            Environment(tuple(source_ips) if source_ips else None),
            Resource.parse(resource),
        )

    @property
    def action_names(self) -> list[str]:
        """The actions as responses have them."""
        return [action.name.capitalize() for action in self.actions]


class Policy(msgspec.Struct, frozen=True, rename="camel"):
    """The entries of one type."""

    entries: tuple[PolicyEntry, ...] = ()
    policy_type: PolicyType = PolicyType.CUSTOM


class _Subject(msgspec.Struct, rename="camel"):
    subject_type: int
    username: str


class _Stored(msgspec.Struct):
    policies: tuple[Policy, ...] = ()
    subject: _Subject | None = None


def encode_policies(name: str, policies: Sequence[Policy]) -> bytes:
    """Return the policies of a user as the database has them."""
    return msgspec.json.encode(_Stored(tuple(policies), _Subject(USER_SUBJECT, name)))


def decode_policies(name: str, data: bytes) -> tuple[Policy, ...]:
    """Read the policies of a user from the database.

    Raises:
        ConfigError: they are malformed.
    """
    try:
        return msgspec.json.decode(data, type=_Stored).policies
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise ConfigError(f"policies of the user {name[:100]!r}: {problem}") from None


def with_entries(
    policies: Sequence[Policy], more: Iterable[tuple[PolicyType, Sequence[PolicyEntry]]]
) -> tuple[Policy, ...]:
    """Return policies with further entries, which replace entries of the same type and resource.

    Raises:
        ConfigError: there are too many.
    """
    found: dict[PolicyType, tuple[PolicyEntry, ...]] = {
        policy.policy_type: policy.entries for policy in policies
    }
    for kind, entries in more:
        fresh: dict[Resource, list[PolicyEntry]] = {}
        for entry in entries:
            fresh.setdefault(entry.resource, []).append(entry)
        merged: dict[Resource, list[PolicyEntry]] = {}
        for entry in found.get(kind, ()):
            merged.setdefault(entry.resource, []).append(entry)
        found[kind] = tuple(chain.from_iterable((merged | fresh).values()))
    if sum(map(len, found.values())) > ENTRIES_MAX:
        raise ConfigError(f"more than {ENTRIES_MAX} entries in the policies of one user")
    return tuple(Policy(entries, kind) for kind, entries in found.items() if entries)


def without_resource(
    policies: Sequence[Policy], kind: PolicyType, resource: Resource
) -> tuple[Policy, ...]:
    """Return policies without the entry of a resource."""
    left = (
        Policy(
            tuple(
                entry
                for entry in policy.entries
                if policy.policy_type != kind or entry.resource != resource
            ),
            policy.policy_type,
        )
        for policy in policies
    )
    return tuple(policy for policy in left if policy.entries)


def with_resources_like(policies: Sequence[Policy], part: str) -> tuple[Policy, ...]:
    """Return the entries whose resource contains a text."""
    found = (
        Policy(
            tuple(entry for entry in policy.entries if part in entry.resource.key),
            policy.policy_type,
        )
        for policy in policies
    )
    return tuple(policy for policy in found if policy.entries)


class _Rule:
    """An entry, ready to decide."""

    __slots__ = ("actions", "allows", "networks")

    def __init__(self, entry: PolicyEntry) -> None:
        self.actions = 0
        for action in entry.actions:
            self.actions |= _MASKS[action]
        self.allows = entry.decision == Decision.ALLOW
        texts = entry.environment.source_ips or ()
        self.networks: tuple[Network, ...] = tuple(map(_network, texts))

    def matches(self, actions: int, host: str) -> bool:
        """Return whether it is about one of the actions, from an address."""
        if not self.actions & actions:
            return False
        if not self.networks:
            return True
        address = _address(host)
        return address is not None and any(address in network for network in self.networks)


_NO_PREFIXES: Final[Mapping[int, dict[str, list[_Rule]]]] = {}


class _Rules:
    """The entries of one type of policies, found by resources: no look-up scans all of them."""

    __slots__ = ("_everything", "_kinds", "_literals", "_prefixes")

    def __init__(self, entries: Iterable[PolicyEntry]) -> None:
        self._literals: dict[tuple[ResourceTypeCode, str], list[_Rule]] = {}
        self._prefixes: dict[ResourceTypeCode, dict[int, dict[str, list[_Rule]]]] = {}
        """By the lengths of the prefixes, the shortest one first, and the prefixes."""
        self._kinds: dict[ResourceTypeCode, list[_Rule]] = {}
        """Entries about every name of a kind."""
        self._everything: list[_Rule] = []
        ordered = sorted(
            entries, key=lambda each: (each.resource.closeness, each.decision != Decision.DENY)
        )
        for entry in ordered:
            resource, rule = entry.resource, _Rule(entry)
            kind, name = resource.resource_type, resource.resource_name or ""
            if kind == ResourceTypeCode.ANY:
                self._everything.append(rule)
            elif resource.resource_pattern == Pattern.LITERAL:
                self._literals.setdefault((kind, name), []).append(rule)
            elif resource.resource_pattern == Pattern.PREFIXED:
                of_length = self._prefixes.setdefault(kind, {}).setdefault(len(name), {})
                of_length.setdefault(name, []).append(rule)
            else:
                self._kinds.setdefault(kind, []).append(rule)

    def decision(self, kind: ResourceTypeCode, name: str, actions: int, host: str) -> bool | None:
        """Return whether the closest entry that matches allows; None if none matches."""
        for rules in self._about(kind, name):
            for rule in rules:
                if rule.matches(actions, host):
                    return rule.allows
        return None

    def _about(self, kind: ResourceTypeCode, name: str) -> Iterator[Sequence[_Rule]]:
        """Yield the entries about a name, the closest ones first."""
        yield self._literals.get((kind, name), ())
        for length, prefixes in self._prefixes.get(kind, _NO_PREFIXES).items():
            if length > len(name):
                break
            yield prefixes.get(name[:length], ())
        yield self._kinds.get(kind, ())
        yield self._everything


class Rules:
    """The policies of one user, ready to decide.

    Args:
        policies: the policies.

    Raises:
        ConfigError: an address of an entry is none.
    """

    __slots__ = ("_of_types",)

    def __init__(self, policies: Sequence[Policy]) -> None:
        by_type: Mapping[PolicyType, list[PolicyEntry]] = {kind: [] for kind in PolicyType}
        for policy in policies:
            by_type[policy.policy_type].extend(policy.entries)
        self._of_types = tuple(_Rules(by_type[kind]) for kind in PolicyType)

    def decision(self, need: Need, host: str) -> bool | None:
        """Return whether a need is allowed from an address; None if no entry is about it."""
        kind = _TYPE_CODES[need.resource_type]
        for rules in self._of_types:
            decided = rules.decision(kind, need.name, int(need.action), host)
            if decided is not None:
                return decided
        return None


@lru_cache(_HOSTS_MAX)
def _address(host: str) -> Address | None:
    """Return the address of a peer; an IPv4 address in an IPv6 one is that IPv4 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(_NETWORKS_MAX)
def _network(text: str) -> Network:
    """Return the addresses of a text such as ``10.0.0.1`` or ``10.0.0.0/8``.

    Raises:
        ConfigError: it is none.
    """
    try:
        _, slash, prefix = text.partition("/")
        if slash and not prefix.isdecimal():  # a mask such as 255.0.0.0 is none in RocketMQ
            raise ValueError
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(
            f"the source ip {text[:100]!r} is none: expected an IP address or a network such as"
            " 10.0.0.0/8"
        ) from None
