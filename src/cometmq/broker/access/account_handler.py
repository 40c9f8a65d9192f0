"""Handles requests that show and change the accounts of a broker: 50 to 54.

A change is written to its file first; when it is acknowledged, it is in force and as a whole. The
listing does not contain secret keys.

Source: AdminBrokerProcessor and PlainPermissionManager, RocketMQ 4.9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from cometmq.access.plain.account import AccountEntry, check_permissions
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.broker_admin import (
    DeleteAclConfigRequest,
    GetBrokerClusterAclInfoResponse,
    UpdateAndCreateAclConfigRequest,
    UpdateGlobalWhiteAddrsConfigRequest,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import off_loop
from cometmq.remoting.slow_requests import in_thread

log = logging.getLogger(__name__)


class AccountHandler:
    """Shows and changes accounts.

    Args:
        accounts: the accounts; None without access control.
        settings: returns the current settings of the broker.
        address: ``host:port`` of the broker.
    """

    def __init__(
        self,
        accounts: PlainAccounts | None,
        *,
        settings: Callable[[], BrokerSettings],
        address: str,
    ) -> None:
        self._accounts = accounts
        self._settings = settings
        self._address = address

    async def put_account(self, request: Request) -> Response:
        """UPDATE_AND_CREATE_ACL_CONFIG (50): add an account, or change what the request names."""
        failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        accounts = self._required(failed)
        header = request.header(UpdateAndCreateAclConfigRequest)
        change = partial(_changed, header)
        await _change(failed, partial(accounts.put_account, header.access_key, change))
        log.info(
            "account changed accessKey=%.200s peer=%s",
            *(header.access_key, request.connection.peer_text),
        )
        return Response()

    async def delete_account(self, request: Request) -> Response:
        """DELETE_ACL_CONFIG (51)."""
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        accounts = self._required(failed)
        access_key = request.header(DeleteAclConfigRequest).access_key
        await _change(failed, partial(accounts.delete_account, access_key))
        log.info(
            "account deleted accessKey=%.200s peer=%s", access_key, request.connection.peer_text
        )
        return Response()

    async def put_addresses(self, request: Request) -> Response:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): replace the white addresses of a file."""
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        accounts = self._required(failed)
        header = request.header(UpdateGlobalWhiteAddrsConfigRequest)
        addresses = _split(header.global_white_addrs) or []
        file = header.acl_file_full_path
        await _change(failed, partial(accounts.put_addresses, file or None, addresses))
        log.info(
            "white addresses changed addresses=%.1000s peer=%s",
            *(",".join(addresses), request.connection.peer_text),
        )
        return Response()

    def versions(self, request: Request) -> Response:
        """GET_BROKER_CLUSTER_ACL_INFO (52): how often requests have changed each file."""
        accounts = self._required(ResponseCode.SYSTEM_ERROR)
        versions = accounts.versions()
        every = {str(path): _shown(version) for path, version in versions.items()}
        main = _shown(versions.get(accounts.main_file, DataVersion()))
        settings = self._settings()
        return Response(
            header=GetBrokerClusterAclInfoResponse(
                version=fastjson.dumps(main).decode(),
                all_acl_file_version=fastjson.dumps(every).decode(),
                broker_name=settings.broker_name,
                broker_addr=self._address,
                cluster_name=settings.broker_cluster_name,
            )
        )

    async def show(self, request: Request) -> Response:
        """GET_BROKER_CLUSTER_ACL_CONFIG (54): the accounts without their secret keys."""
        accounts = self._required(ResponseCode.SYSTEM_ERROR)

        def listing() -> bytes:
            entries = [_listed(entry) for entry in accounts.entries()]
            return fastjson.dumps(
                {"globalWhiteAddrs": accounts.addresses(), "plainAccessConfigs": entries}
            )

        return Response(body=await off_loop(listing))  # there may be ten thousand

    def _required(self, code: int) -> PlainAccounts:
        if self._accounts is None:
            raise ResponseError(code, "this broker has no access control: aclEnable=false")
        return self._accounts


def _changed(header: UpdateAndCreateAclConfigRequest, old: AccountEntry | None) -> AccountEntry:
    """Return an account as a request changes it: what the request does not name stays.

    Empty addresses and lists take away what was there. An empty default permission stays as it is,
    as in RocketMQ.

    Raises:
        ConfigError: there is no secret key, or a permission is none.
    """
    if not header.secret_key:
        raise ConfigError(f"account {header.access_key[:100]!r}: expected a secretKey")
    before = old or AccountEntry(access_key=header.access_key, secret_key="")
    white = header.white_remote_address
    topics, groups = _split(header.topic_perms), _split(header.group_perms)
    check_permissions("topicPerms", topics)
    check_permissions("groupPerms", groups)
    return AccountEntry(
        access_key=header.access_key,
        secret_key=header.secret_key,
        white_remote_address=before.white_remote_address if white is None else white,
        admin=before.admin if header.admin is None else header.admin,
        default_topic_perm=header.default_topic_perm or before.default_topic_perm,
        default_group_perm=header.default_group_perm or before.default_group_perm,
        auto_create=before.auto_create,
        topic_perms=before.topic_perms if topics is None else topics,
        group_perms=before.group_perms if groups is None else groups,
    )


def _split(text: str | None) -> list[str] | None:
    """Return the items of a list with commas; None for none, no items for a blank text."""
    if text is None:
        return None
    return [item.strip() for item in text.split(",") if item.strip()]


async def _change(code: int, change: Callable[[], None]) -> None:
    """Make a change in a thread, because it waits for the disk."""
    try:
        await in_thread(change)
    except ConfigError as problem:
        raise ResponseError(code, str(problem)) from None


def _shown(version: DataVersion) -> dict[str, int]:
    return {
        "counter": version.counter,
        "stateVersion": version.state_version,
        "timestamp": version.timestamp,
    }


def _listed(entry: AccountEntry) -> dict[str, object]:
    return {
        "accessKey": entry.access_key,
        "admin": entry.admin,
        "defaultGroupPerm": entry.default_group_perm or None,
        "defaultTopicPerm": entry.default_topic_perm or None,
        "groupPerms": entry.group_perms,
        "topicPerms": entry.topic_perms,
        "whiteRemoteAddress": entry.white_remote_address or None,
    }
