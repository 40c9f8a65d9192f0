"""Headers of requests about users and policies, the access control 2.0 of RocketMQ.

Source: CreateUserRequestHeader, CreateAclRequestHeader and relatives, RocketMQ 5.3.
"""

from cometmq.protocol.headers.base import Header


class AuthCreateUserRequest(Header, kw_only=True):
    """AUTH_CREATE_USER (3001)."""

    username: str | None = None


class AuthUpdateUserRequest(Header, kw_only=True):
    """AUTH_UPDATE_USER (3002)."""

    username: str | None = None


class AuthDeleteUserRequest(Header, kw_only=True):
    """AUTH_DELETE_USER (3003)."""

    username: str | None = None


class AuthGetUserRequest(Header, kw_only=True):
    """AUTH_GET_USER (3004)."""

    username: str | None = None


class AuthListUserRequest(Header, kw_only=True):
    """AUTH_LIST_USER (3005)."""

    filter: str | None = None


class AuthCreateAclRequest(Header, kw_only=True):
    """AUTH_CREATE_ACL (3006)."""

    subject: str | None = None


class AuthUpdateAclRequest(Header, kw_only=True):
    """AUTH_UPDATE_ACL (3007)."""

    subject: str | None = None


class AuthDeleteAclRequest(Header, kw_only=True):
    """AUTH_DELETE_ACL (3008)."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class AuthGetAclRequest(Header, kw_only=True):
    """AUTH_GET_ACL (3009)."""

    subject: str | None = None


class AuthListAclRequest(Header, kw_only=True):
    """AUTH_LIST_ACL (3010)."""

    subject_filter: str | None = None
    resource_filter: str | None = None
