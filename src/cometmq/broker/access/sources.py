"""Opens the accounts of a broker, and what checks requests with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cometmq.access.certificates import with_certificates
from cometmq.access.gate import Gate
from cometmq.access.rights import Kind, Lookups, RequestNeeds
from cometmq.access.signer import credentials_of
from cometmq.access.user_settings import UserSettings, user_settings
from cometmq.access.users.accounts import UserAccounts
from cometmq.access.users.user import User, UserType
from cometmq.broker.access.control import AccessControl, RecordTopics
from cometmq.broker.config import BrokerSettings
from cometmq.broker.core import Core
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import TlsSettings
from cometmq.store import StoreSettings

if TYPE_CHECKING:
    from cometmq.access.plain.accounts import PlainAccounts


class AccessSources(msgspec.Struct, frozen=True):
    """The accounts of a broker: either plain ones, or users."""

    control: AccessControl | None
    """Checks every request; None if none is checked."""
    accounts: PlainAccounts | None = None
    users: UserAccounts | None = None


def open_sources(core: Core) -> AccessSources | None:
    """Read the accounts or users; None if the settings turn on neither.

    Raises:
        ConfigError: files of accounts or the databases of users cannot be used.
        StoreError: the disk refuses, or another process uses the databases.
    """
    configuration, settings = core.configuration, core.settings()
    of_users, tls = user_settings(configuration), configuration[TlsSettings]
    topics = RecordTopics(core.store, core.cold_reads)

    def group_exists(name: str) -> bool:
        return name in core.groups or bool(core.offsets.topics_of(name))

    cluster = settings.broker_cluster_name
    lookups = Lookups(cluster, topics.of_record, topics.of_half, group_exists)
    if settings.acl_enable and of_users.keeps_users:
        raise ConfigError(
            "aclEnable=true together with settings of users, such as authenticationEnabled:"
            " expected one of them; migrateAuthFromV1Enabled=true makes users of the accounts"
        )
    if settings.acl_enable:
        return _plain(core, settings, tls, lookups)
    if of_users.keeps_users:
        folder = of_users.auth_config_path or configuration[StoreSettings].root / "config"
        users = UserAccounts(
            folder.absolute(),
            _first_users(of_users, settings.inner_client_credentials),
            authorizes=of_users.authorization_enabled,
        )
        try:
            return _users(core, users, of_users, tls, lookups)
        except BaseException:
            users.close()
            raise
    return None


def _plain(
    core: Core, settings: BrokerSettings, tls: TlsSettings, lookups: Lookups
) -> AccessSources:
    from cometmq.access.plain.accounts import PlainAccounts  # needs the extra acl

    assert settings.rocketmq_home is not None
    accounts = PlainAccounts(settings.rocketmq_home.absolute(), core.files, core.clock)
    accounts.load()
    needs = RequestNeeds(Kind.PLAIN, lookups)
    senders = with_certificates(accounts, tls)
    gate = Gate(senders, ResponseCode.SYSTEM_ERROR)
    return AccessSources(AccessControl(senders, gate, needs), accounts=accounts)


def _users(
    core: Core, users: UserAccounts, of_users: UserSettings, tls: TlsSettings, lookups: Lookups
) -> AccessSources:
    if of_users.migrate_from_plain:
        _migrate(core, users)
    if not of_users.checks_requests:
        return AccessSources(None, users=users)
    needs = RequestNeeds(Kind.USERS, lookups)
    senders = with_certificates(users, tls)
    gate = Gate(
        senders,
        ResponseCode.NO_PERMISSION,
        open_codes=of_users.open_codes,
        signed_codes=of_users.signed_codes,
    )
    return AccessSources(AccessControl(senders, gate, needs), users=users)


def _migrate(core: Core, users: UserAccounts) -> None:
    from cometmq.access.plain.accounts import PlainAccounts  # needs the extra acl
    from cometmq.access.users.migration import migrate

    home = core.settings().rocketmq_home
    if home is None:
        raise ConfigError(
            "migrateAuthFromV1Enabled=true without rocketmqHome: expected the directory above"
            " conf/plain_acl.yml"
        )
    try:
        migrate(PlainAccounts(home.absolute(), core.files, core.clock), users)
    except ResponseError as refusal:
        raise ConfigError(f"cannot make a user of an account: {refusal.remark}") from None


def _first_users(of_users: UserSettings, inner: str) -> list[User]:
    """Return the super users of the settings."""
    first = of_users.first_user
    users = [] if first is None else [User(first.username, first.password, UserType.SUPER)]
    if inner:
        credentials = credentials_of(inner)
        users.append(User(credentials.access_key, credentials.secret_key, UserType.SUPER))
    return users
