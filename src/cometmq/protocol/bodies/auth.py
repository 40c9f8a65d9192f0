"""Users and policies, the access control 2.0 of RocketMQ.

Source: UserInfo and AclInfo, RocketMQ 5.3.
"""

from msgspec import field

from cometmq.protocol.bodies.base import Body, Part


class UserInfo(Body, kw_only=True):
    """AUTH_CREATE_USER (3001), AUTH_UPDATE_USER (3002), AUTH_GET_USER (3004)."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(Part, kw_only=True):
    """The entry of a policy about one resource."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Part, kw_only=True):
    """A policy of a subject."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = field(default_factory=list)


class AclInfo(Body, kw_only=True):
    """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007), AUTH_GET_ACL (3009)."""

    subject: str | None = None
    policies: list[PolicyInfo] = field(default_factory=list)
