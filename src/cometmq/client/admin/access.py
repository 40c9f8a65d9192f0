"""Users, policies and accounts of brokers with access control.

Source: DefaultMQAdminExtImpl, RocketMQ 4.9 and 5.3."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cometmq.client.admin.servers import AdminCore
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.auth import AclInfo, UserInfo
from cometmq.protocol.bodies.base import decode_body
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.auth import (
    AuthCreateAclRequest,
    AuthCreateUserRequest,
    AuthDeleteAclRequest,
    AuthDeleteUserRequest,
    AuthGetAclRequest,
    AuthGetUserRequest,
    AuthListAclRequest,
    AuthListUserRequest,
    AuthUpdateAclRequest,
    AuthUpdateUserRequest,
)
from cometmq.protocol.headers.broker_admin import (
    DeleteAclConfigRequest,
    GetBrokerClusterAclInfoResponse,
    UpdateAndCreateAclConfigRequest,
    UpdateGlobalWhiteAddrsConfigRequest,
)

S = TypeVar("S", bound=msgspec.Struct)


class Access(AdminCore):
    """Calls about access control: 2.0 with users and policies, 1.0 with accounts."""

    async def user(self, address: str, name: str | None) -> list[UserInfo]:
        """Return the user with this name; an empty list if a broker has none."""
        header = AuthGetUserRequest(username=name)
        response = await self.call(address, RequestCode.AUTH_GET_USER, header)
        return _decoded(UserInfo, response.body)

    async def users(self, address: str, part: str | None = None) -> list[UserInfo]:
        """Return the users of a broker, or those whose name contains ``part``."""
        header = AuthListUserRequest(filter=part)
        response = await self.call(address, RequestCode.AUTH_LIST_USER, header)
        return _decoded(UserInfo, response.body)

    async def create_user(self, address: str, user: UserInfo) -> None:
        """Create a user on a broker."""
        header = AuthCreateUserRequest(username=user.username)
        await self.call(address, RequestCode.AUTH_CREATE_USER, header, user.encode())

    async def update_user(self, address: str, user: UserInfo) -> None:
        """Change a user on a broker: what is not None."""
        header = AuthUpdateUserRequest(username=user.username)
        await self.call(address, RequestCode.AUTH_UPDATE_USER, header, user.encode())

    async def delete_user(self, address: str, name: str) -> None:
        """Delete a user from a broker."""
        header = AuthDeleteUserRequest(username=name)
        await self.call(address, RequestCode.AUTH_DELETE_USER, header)

    async def policy(self, address: str, subject: str | None) -> list[AclInfo]:
        """Return the policy of a subject such as ``User:app``; an empty list if there is none."""
        header = AuthGetAclRequest(subject=subject)
        response = await self.call(address, RequestCode.AUTH_GET_ACL, header)
        return _decoded(AclInfo, response.body)

    async def policies(
        self, address: str, subject: str | None = None, resource: str | None = None
    ) -> list[AclInfo]:
        """Return the policies of a broker.

        Args:
            address: the broker.
            subject: only subjects that contain this.
            resource: only policies with a resource that contains this.
        """
        header = AuthListAclRequest(subject_filter=subject, resource_filter=resource)
        response = await self.call(address, RequestCode.AUTH_LIST_ACL, header)
        return _decoded(AclInfo, response.body)

    async def create_policy(self, address: str, policy: AclInfo) -> None:
        """Create the policy of a subject on a broker."""
        header = AuthCreateAclRequest(subject=policy.subject)
        await self.call(address, RequestCode.AUTH_CREATE_ACL, header, policy.encode())

    async def update_policy(self, address: str, policy: AclInfo) -> None:
        """Change the policy of a subject on a broker."""
        header = AuthUpdateAclRequest(subject=policy.subject)
        await self.call(address, RequestCode.AUTH_UPDATE_ACL, header, policy.encode())

    async def delete_policy(self, address: str, subject: str, resource: str | None = None) -> None:
        """Delete the policy of a subject from a broker, or only its entry for a resource."""
        header = AuthDeleteAclRequest(subject=subject, resource=resource)
        await self.call(address, RequestCode.AUTH_DELETE_ACL, header)

    async def set_account(
        self,
        address: str,
        access_key: str,
        secret_key: str,
        *,
        admin: bool | None = None,
        white_address: str | None = None,
        topic_perm: str | None = None,
        group_perm: str | None = None,
        topic_perms: str | None = None,
        group_perms: str | None = None,
    ) -> None:
        """Create a plain account on a broker, or change it.

        Args:
            address: the broker.
            access_key, secret_key: the keys of the account.
            admin: whether it may administrate; None leaves it as it is, and makes it no
                administrator if the account is new, or if the broker is RocketMQ's.
            white_address: white addresses, from which it needs no signature; an empty text takes
                them away, None leaves them as they are.
            topic_perm, group_perm: permission for topics and groups without an entry.
            topic_perms, group_perms: entries ``name=permission`` with commas between them; an
                empty text takes them away, None leaves them as they are.

        Raises:
            ResponseError: the broker refused, or is 5.3 or later.
        """
        header = UpdateAndCreateAclConfigRequest(
            access_key=access_key,
            secret_key=secret_key,
            white_remote_address=white_address,
            admin=admin,
            default_topic_perm=topic_perm,
            default_group_perm=group_perm,
            topic_perms=topic_perms,
            group_perms=group_perms,
        )
        await self.call(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete_account(self, address: str, access_key: str) -> None:
        """Delete a plain account from a broker."""
        header = DeleteAclConfigRequest(access_key=access_key)
        await self.call(address, RequestCode.DELETE_ACL_CONFIG, header)

    async def set_white_addresses(
        self, address: str, addresses: str, *, file: str | None = None
    ) -> None:
        """Replace the white addresses of a broker, from which no request needs a plain account.

        Args:
            address: the broker.
            addresses: addresses or patterns, with commas between them.
            file: the file on the broker to change, instead of the usual one.
        """
        header = UpdateGlobalWhiteAddrsConfigRequest(
            global_white_addrs=addresses, acl_file_full_path=file
        )
        await self.call(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def account_files(self, address: str) -> GetBrokerClusterAclInfoResponse:
        """Return the versions of a broker's files of plain accounts."""
        response = await self.call(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        return response.header(GetBrokerClusterAclInfoResponse)


def _decoded(kind: type[S], body: bytes) -> list[S]:
    """Return the values in a body, which is one, a list of them, or empty."""
    found = fastjson.loads(bytes(body)) if body else []
    return [
        decode_body(kind, msgspec.json.encode(each))
        for each in (found if isinstance(found, list) else [found])
    ]
