"""Users and policies: which entry decides, how they are stored, changed and read again."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from cometmq.access.needs import Action, Need, Needs, ResourceType, group_need, topic_need
from cometmq.access.plain.account import AccountEntry
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.access.user_settings import UserSettings
from cometmq.access.users.accounts import UserAccounts, UserError
from cometmq.access.users.migration import migrate, policies_of
from cometmq.access.users.policies import (
    ENTRIES_MAX,
    Decision,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    Rules,
    decode_policies,
    encode_policies,
    with_entries,
)
from cometmq.access.users.storage import Database
from cometmq.access.users.user import User, UserStatus, UserType, decode_user, encode_user
from cometmq.model.errors import ConfigError, ResponseError, StoreError
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.wire.fake_transport import Wired

SUPER = User("root", "root-secret", UserType.SUPER)
ALICE = User("alice", "alice-secret")
PUB = topic_need("orders", Action.PUB)
HOST = "10.1.2.3"
STORED_USER = (
    b'{"password":"p","subjectType":1,"userStatus":2,"userType":1,"username":"\xc3\xbcser"}'
)
STORED_POLICIES = (
    b'{"policies":[{"entries":[{"actions":[3,4],"decision":2,"environment":{"sourceIps":'
    b'["10.0.0.0/8","192.0.2.1"]},"resource":{"resourceName":"a","resourcePattern":2,'
    b'"resourceType":4}},{"actions":[1],"decision":1,"environment":{},"resource":'
    b'{"resourceName":"g","resourcePattern":3,"resourceType":5}},{"actions":[8],"decision":1,'
    b'"environment":{},"resource":{"resourcePattern":1,"resourceType":1}},{"actions":[9,6,5,7],'
    b'"decision":1,"environment":{},"resource":{"resourcePattern":1,"resourceType":4}}],'
    b'"policyType":1},{"entries":[{"actions":[8],"decision":1,"environment":{},"resource":'
    b'{"resourceName":"x","resourcePattern":2,"resourceType":2}}],"policyType":2}],'
    b'"subject":{"subjectType":1,"username":"alice"}}'
)
"""Values that a broker of RocketMQ 5.3.3 has stored."""


def entry(
    resource: str, *actions: str, ips: tuple[str, ...] = (), allow: bool = True
) -> PolicyEntry:
    return PolicyEntry.parse(resource, actions, ips, "Allow" if allow else "Deny")


def rules(*entries: PolicyEntry, default: tuple[PolicyEntry, ...] = ()) -> Rules:
    return Rules([Policy(entries), Policy(default, PolicyType.DEFAULT)])


# --- which entry decides ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "need", "allowed"),
    [
        ("Topic:orders", PUB, True),
        ("Topic:order", PUB, None),
        ("Topic:Orders", PUB, None),
        ("Topic:ord*", PUB, True),
        ("Topic:orders*", PUB, True),
        ("Topic:ordersx*", PUB, None),
        ("Topic:*", PUB, True),
        ("*", PUB, True),
        ("Group:orders", PUB, None),
        ("Group:*", PUB, None),
        ("Group:g", group_need("g", Action.PUB), True),
        ("Cluster:c", Need(ResourceType.CLUSTER, "c", Action.PUB), True),
        ("Namespace:n", PUB, None),
    ],
)
def test_an_entry_is_about_the_names_of_its_resource(
    resource: str, need: Need, allowed: bool | None
) -> None:
    assert rules(entry(resource, "Pub")).decision(need, HOST) is allowed
    assert Resource.parse(resource).key == resource


CLOSEST_FIRST = ["Topic:orders", "Topic:o*", "Topic:ord*", "Topic:*", "*"]


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("near", range(len(CLOSEST_FIRST)))
@pytest.mark.parametrize("far", range(len(CLOSEST_FIRST)))
def test_the_closest_entry_decides_in_whatever_order_they_came(
    near: int, far: int, allow: bool
) -> None:
    if near >= far:
        return
    one = entry(CLOSEST_FIRST[near], "Pub", allow=allow)
    other = entry(CLOSEST_FIRST[far], "All", allow=not allow)
    assert rules(one, other).decision(PUB, HOST) is allow
    assert rules(other, one).decision(PUB, HOST) is allow
    assert rules(default=(one,)).decision(PUB, HOST) is allow
    assert rules(other, default=(one,)).decision(PUB, HOST) is not allow


def test_of_equal_entries_a_denial_decides() -> None:
    both = entry("Topic:orders", "All"), entry("Topic:orders", "Pub", allow=False)
    assert rules(*both).decision(PUB, HOST) is False
    assert rules(*reversed(both)).decision(PUB, HOST) is False


def test_a_decision_does_not_take_longer_with_many_entries() -> None:
    """The lines that one decision runs are counted, so that no clock decides."""
    few, many = (
        rules(*(entry(f"Topic:of-{n:05}*", "Pub", "Sub") for n in range(count)))
        for count in (10, ENTRIES_MAX)
    )
    assert lines_of(lambda: many.decision(PUB, HOST)) == lines_of(lambda: few.decision(PUB, HOST))


def lines_of(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def test_among_many_entries_the_closest_one_decides() -> None:
    random = Random(5)
    names = ["", "a", "ab", "abc", "b", "ba"]
    keys = [
        "*", *(f"{kind}:{name}{end}" for kind in ("Topic", "Group") for name in names
               for end in ("", "*") if name + end),
    ]  # fmt: skip
    for _ in range(300):
        chosen = [
            entry(random.choice(keys), random.choice(("Pub", "Sub")), allow=random.random() < 0.5)
            for _ in range(random.randrange(12))
        ]
        found = rules(*chosen)
        for need in (topic_need("abc", Action.PUB), topic_need("b", Action.SUB), group_need("ba")):
            assert found.decision(need, HOST) == closest_decides(chosen, need)


def closest_decides(entries: list[PolicyEntry], need: Need) -> bool | None:
    """Decide as the documentation says it, entry by entry."""
    matching = []
    for each in entries:
        kind, _, name = each.resource.key.partition(":")
        is_about = kind == "*" or (
            kind == need.resource_type
            and (need.name.startswith(name[:-1]) if name.endswith("*") else need.name == name)
        )
        if is_about and Action[each.actions[0].name] & need.action:
            rank = (3,) if kind == "*" else (2,) if name == "*" else (1, len(name))
            rank = rank if name.endswith("*") or kind == "*" else (0,)
            is_allowed = each.decision == Decision.ALLOW
            matching.append((rank, is_allowed))
    return min(matching)[1] if matching else None


def test_an_entry_for_other_actions_does_not_decide() -> None:
    of_user = rules(entry("Topic:orders", "Sub", "Get", allow=False), entry("Topic:*", "pub"))
    assert of_user.decision(PUB, HOST) is True
    assert of_user.decision(topic_need("orders", Action.PUB | Action.GET), HOST) is False
    assert of_user.decision(topic_need("other", Action.UPDATE), HOST) is None


@pytest.mark.parametrize(
    ("ips", "host", "matches"),
    [
        (("10.1.2.3",), HOST, True),
        (("10.1.2.4",), HOST, False),
        (("10.9.9.9", "10.0.0.0/8"), HOST, True),
        (("10.1.2.131/25",), HOST, False),
        (("0.0.0.0/0",), HOST, True),
        (("10.1.2.3",), "::ffff:10.1.2.3", True),
        (("2001:db8::/32",), "2001:db8::5", True),
        (("2001:db8::/32",), "fe80::1%eth0", False),
        (("0.0.0.0/0",), "no address", False),
    ],
)
def test_an_entry_is_about_its_addresses(ips: tuple[str, ...], host: str, matches: bool) -> None:
    allowed = rules(entry("Topic:orders", "Pub", ips=ips)).decision(PUB, host)
    assert allowed is (True if matches else None)


def test_a_retry_topic_is_its_group() -> None:
    assert topic_need("%RETRY%g", Action.PUB) == group_need("g")
    assert topic_need("%RETRY%g", Action.CREATE) == group_need("g", Action.CREATE)
    assert topic_need("%RETRY%g", Action.SUB | Action.GET) == group_need(
        "g", Action.SUB | Action.GET
    )
    assert topic_need("%DLQ%g", Action.SUB).resource_type == ResourceType.TOPIC


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (("Nonsense:a", ["Pub"], [], "Allow"), "resource"),
        (("Any:a", ["Pub"], [], "Allow"), "resource"),
        (("Topic", ["Pub"], [], "Allow"), "resource"),
        (("Topic:", ["Pub"], [], "Allow"), "resource"),
        ((None, ["Pub"], [], "Allow"), "resource"),
        (("Topic:abc*zz*", ["Pub"], [], "Allow"), "resource"),
        (("Topic:abc**", ["Pub"], [], "Allow"), "resource"),
        (("Group:*abc", ["Sub"], [], "Allow"), "resource"),
        (("Cluster:a*c", ["Get"], [], "Allow"), "resource"),
        (("**", ["Pub"], [], "Allow"), "resource"),
        (("Topic:a", None, [], "Allow"), "actions"),
        (("Topic:a", ["Pub", "Publish"], [], "Allow"), "actions"),
        (("Topic:a", ["Any"], [], "Allow"), "actions"),
        (("Topic:a", ["Pub"], [], None), "decision"),
        (("Topic:a", ["Pub"], ["10.0.0.0/255.0.0.0"], "Allow"), "source ip"),
        (("Topic:a", ["Pub"], ["host"], "Allow"), "source ip"),
    ],
)
def test_a_senseless_entry_is_refused_with_what_is_wrong(
    values: tuple[object, ...], word: str
) -> None:
    with pytest.raises(ConfigError, match=f"{word}.* expected"):
        PolicyEntry.parse(*values)  # type: ignore[arg-type]


# --- what the databases contain -----------------------------------------------------------------


def test_users_are_stored_as_rocketmq_does() -> None:
    user = User("üser", "p", UserType.SUPER, UserStatus.DISABLE)
    assert decode_user("üser", STORED_USER) == user
    assert encode_user(user) == STORED_USER
    assert decode_user("a", b'{"password":"p"}') == User("a", "p")
    assert "secret" not in repr(ALICE)


def test_policies_are_stored_as_rocketmq_does() -> None:
    policies = decode_policies("alice", STORED_POLICIES)
    assert [each.resource.key for each in policies[0].entries] == [
        "Topic:a", "Group:g*", "*", "Topic:*",
    ]  # fmt: skip
    assert policies[0].entries[0].action_names == ["Pub", "Sub"]
    assert encode_policies("alice", policies) == STORED_POLICIES


@pytest.mark.parametrize("value", [b"", b"{", b"{}", b'{"password":"hush","userType":3}', b"\xff"])
def test_a_value_that_is_no_user_is_an_error_without_the_password(value: bytes) -> None:
    with pytest.raises(ConfigError, match="alice") as raised:
        decode_user("alice", value)
    assert "hush" not in str(raised.value)


def test_policies_that_cannot_be_read_are_an_error_and_not_left_out() -> None:
    for value in (b"{", STORED_POLICIES.replace(b'"decision":2', b'"decision":7')):
        with pytest.raises(ConfigError, match="alice"):
            decode_policies("alice", value)


# --- users and their policies -------------------------------------------------------------------


class Opened:
    """The users in a folder, which may be closed and opened again."""

    def __init__(self, folder: Path, *, authorizes: bool = True) -> None:
        self.folder = folder
        self.authorizes = authorizes
        self.users = UserAccounts(folder, [SUPER], authorizes=authorizes)

    def reopen(self) -> UserAccounts:
        self.users.close()
        self.users = UserAccounts(self.folder, [SUPER], authorizes=self.authorizes)
        return self.users

    async def refusal(self, name: str, *needs: Need, administrator: bool = False) -> str | None:
        """Why a request of a user is refused."""
        wire = Wired(peer=(HOST, 51000)).connection
        account = self.users.sender_of(wire, name)
        return account.refusal(0, Needs(administrator, needs))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path / "config")
    yield made
    made.users.close()


CUSTOM = PolicyType.CUSTOM


async def test_what_is_changed_is_there_after_the_next_start(opened: Opened) -> None:
    users = opened.users
    users.create(ALICE)
    users.create(User("bob", "bob-secret"))
    users.put_entries("alice", [(CUSTOM, [entry("Topic:orders", "Pub")])])
    users.update("alice", password="new", type=None, status=UserStatus.DISABLE)
    users.delete("bob")

    users = opened.reopen()

    assert [user.name for user in users.users()] == ["alice", "root"]
    assert users.user("alice") == User("alice", "new", UserType.NORMAL, UserStatus.DISABLE)
    assert [each.resource.key for each in users.policies("alice")[0].entries] == ["Topic:orders"]


async def test_the_first_user_is_created_once(opened: Opened) -> None:
    opened.users.update("root", password="changed", type=None, status=None)
    user = opened.reopen().user("root")
    assert user is not None
    assert (user.password, user.is_super) == ("changed", True)


async def test_a_user_may_what_its_policies_allow(opened: Opened) -> None:
    opened.users.create(ALICE)
    refusal = await opened.refusal("alice", PUB)
    assert refusal == (
        "User:alice has no permission to access Topic:orders from 10.1.2.3, no matched policies."
    )
    opened.users.put_entries("alice", [(CUSTOM, [entry("Topic:*", "Pub")])])
    assert await opened.refusal("alice", PUB) is None
    assert "Group:g" in (await opened.refusal("alice", PUB, group_need("g")) or "")
    opened.users.put_entries("alice", [(CUSTOM, [entry("Topic:orders", "Pub", allow=False)])])
    assert "the decision is deny" in (await opened.refusal("alice", PUB) or "")
    assert await opened.refusal("alice", administrator=True) is not None
    assert await opened.refusal("root", PUB, administrator=True) is None


async def test_a_change_of_a_user_leaves_the_rules_of_the_others(opened: Opened) -> None:
    opened.users.create(ALICE)
    opened.users.create(User("bob", "bob-secret"))
    many = [entry(f"Topic:of-{n:05}*", "Pub", ips=("10.0.0.0/8",)) for n in range(1000)]
    opened.users.put_entries("alice", [(CUSTOM, many)])
    assert await opened.refusal("alice", PUB) is not None
    wire = Wired(peer=(HOST, 51000)).connection
    opened.users.put_entries("bob", [(CUSTOM, [entry("Topic:*", "Pub")])])
    assert lines_of(lambda: opened.users.sender_of(wire, "alice")) < 500
    assert await opened.refusal("bob", PUB) is None
    opened.users.put_entries("alice", [(CUSTOM, [entry("Topic:*", "Pub")])])
    assert lines_of(lambda: opened.users.sender_of(wire, "alice")) < 500
    assert await opened.refusal("alice", PUB) is None
    users = opened.reopen()
    assert lines_of(lambda: users.sender_of(wire, "alice")) < 500
    assert await opened.refusal("alice", PUB) is None
    users.delete("alice")
    users.create(ALICE)
    assert await opened.refusal("alice", PUB) is not None


async def test_without_authorization_a_user_may_everything(tmp_path: Path) -> None:
    made = Opened(tmp_path, authorizes=False)
    made.users.create(ALICE)
    assert await made.refusal("alice", PUB) is None
    made.users.close()


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "username cannot be null"),
        ("nobody", "User:nobody is not found"),
        ("off", "User:off is disabled"),
    ],
)
async def test_a_sender_that_is_no_user_is_refused(opened: Opened, name: str, remark: str) -> None:
    opened.users.create(User("off", "p", UserType.SUPER, UserStatus.DISABLE))
    with pytest.raises(UserError, match=remark) as raised:
        await opened.refusal(name)
    assert raised.value.code == 16


def test_super_users_are_managed_by_super_users(opened: Opened) -> None:
    users = opened.users
    users.create(ALICE)
    with pytest.raises(ResponseError, match="super user"):
        users.create(User("boss", "p", UserType.SUPER), by_super=False)
    for name, kind in (("root", None), ("alice", UserType.SUPER)):
        with pytest.raises(ResponseError, match="super user"):
            users.update(name, password="p", type=kind, status=None, by_super=False)
    with pytest.raises(ResponseError, match="super user"):
        users.delete("root", by_super=False)
    assert users.users() == [ALICE, SUPER]
    users.delete("alice", by_super=False)
    assert users.users() == [SUPER]


@pytest.mark.parametrize(
    "user",
    [User("", "p"), User(" ", "p"), User("u", ""), User("u\n", "p"), User("u" * 1025, "p"),
     User("u", "p" * 1025), User("u\ud800", "p"), User("u", "p\0")],
)  # fmt: skip
def test_a_name_or_password_that_is_none_is_refused(opened: Opened, user: User) -> None:
    with pytest.raises(UserError, match=r"username|password"):
        opened.users.create(user)
    assert opened.users.users() == [SUPER]


def test_a_new_user_has_no_policies_that_a_crash_left_behind(tmp_path: Path) -> None:
    acls = Database(tmp_path / "acls")
    acls.put("User:alice", STORED_POLICIES)
    acls.close()
    users = UserAccounts(tmp_path, authorizes=True)
    users.create(ALICE)
    assert users.policies("alice") == ()
    users.close()
    users = UserAccounts(tmp_path, authorizes=True)
    assert users.policies("alice") == ()
    users.close()


def test_an_entry_replaces_that_of_the_same_resource() -> None:
    a, b = entry("Topic:a", "Pub"), entry("Topic:b", "Pub")
    old = with_entries((), [(CUSTOM, [a, b])])
    fresh = [entry("Topic:a", "Sub"), entry("Topic:a", "Get", allow=False), entry("*", "All")]
    (policy,) = with_entries(old, [(CUSTOM, fresh)])
    assert policy.entries == (fresh[0], fresh[1], b, fresh[2])


def test_the_entries_of_a_user_are_limited() -> None:
    many = [entry(f"Topic:{n}", "Pub") for n in range(ENTRIES_MAX)]
    full = with_entries((), [(CUSTOM, many)])
    with pytest.raises(ConfigError, match=str(ENTRIES_MAX)):
        with_entries(full, [(PolicyType.DEFAULT, many[:1])])


def test_a_copy_of_an_open_folder_has_every_change(opened: Opened, tmp_path: Path) -> None:
    for n in range(50):
        opened.users.create(User(f"user-{n}", "p"))
    copy = shutil.copytree(opened.folder, tmp_path / "copy")
    users = UserAccounts(copy, authorizes=True)
    assert users.users() == opened.users.users()
    users.close()


def test_a_folder_in_use_is_not_opened(opened: Opened) -> None:
    with pytest.raises(StoreError, match=r"users.*another process"):
        UserAccounts(opened.folder, authorizes=True)


class Unsynced:
    """A database whose writes are on the disk, but fail."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def put(self, *arguments: Any) -> None:
        self._database.put(*arguments)
        raise OSError("IO error: cannot sync")

    def delete(self, *arguments: Any) -> None:
        self._database.delete(*arguments)
        raise OSError("IO error: cannot sync")


@pytest.mark.parametrize(
    "change",
    [
        lambda users: users.create(User("carol", "carol-secret")),
        lambda users: users.update("alice", password="new", type=None, status=None),
        lambda users: users.delete("alice"),
    ],
)
def test_a_write_that_failed_is_taken_back_by_the_next_change(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, change: Callable[[UserAccounts], None]
) -> None:
    users = opened.users
    users.create(ALICE)
    stored: Any = users._users
    monkeypatch.setattr(stored, "_database", Unsynced(stored._database))
    with pytest.raises(StoreError, match="cannot sync"):
        change(users)
    assert users.users() == [ALICE, SUPER]
    users.create(User("bob", "bob-secret"))
    assert opened.reopen().users() == [ALICE, User("bob", "bob-secret"), SUPER]


def test_a_damaged_folder_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir(mode=0o700)
    (tmp_path / "users" / "CURRENT").write_text("nonsense")
    with pytest.raises(StoreError, match="users"):
        UserAccounts(tmp_path, authorizes=True)


def test_only_the_owner_may_read_the_folders(opened: Opened) -> None:
    for name in ("users", "acls"):
        assert (opened.folder / name).stat().st_mode & 0o077 == 0


def test_without_rocksdict_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigError, match=r"\[users\]"):
        UserAccounts(tmp_path, authorizes=True)


def test_users_need_no_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = "cometmq.broker.access.sources"
    for name in [*sys.modules]:
        if name.startswith("cometmq.access.plain") or name == sources:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)
    importlib.import_module(sources)


# --- accounts become users ----------------------------------------------------------------------

ACCOUNTS = """
accounts:
- {accessKey: Administrator, secretKey: admin-secret, admin: true}
- accessKey: Orders-1
  secretKey: orders-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [orders=PUB|SUB, bills=WRITE, none=DENY]
  groupPerms: ["%RETRY%shop=SUB"]
- {accessKey: Existing, secretKey: other-secret, admin: true}
"""


async def test_accounts_become_users_with_policies(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/plain_acl.yml").write_text(ACCOUNTS)
    opened.users.create(User("Existing", "mine"))
    plain = PlainAccounts(tmp_path, Files(), ManualClock())
    for _ in range(2):  # the second time there is nothing left to do
        migrate(plain, opened.users)
        opened.reopen()
    assert opened.users.user("Administrator") == User(
        "Administrator", "admin-secret", UserType.SUPER
    )
    assert opened.users.user("Existing") == User("Existing", "mine")
    allowed = [PUB, topic_need("orders", Action.SUB), group_need("shop"), group_need("other")]
    denied = [topic_need(name, Action.PUB) for name in ("bills", "none", "other")]
    for need in allowed:
        assert await opened.refusal("Orders-1", need) is None
    for need in denied:
        assert "the decision is deny" in (await opened.refusal("Orders-1", need) or "")


def test_without_files_there_is_nothing_to_make_users_of(opened: Opened, tmp_path: Path) -> None:
    migrate(PlainAccounts(tmp_path / "none", Files(), ManualClock()), opened.users)
    assert opened.users.users() == [SUPER]


def test_an_account_without_permissions_has_no_policies() -> None:
    kinds = policies_of(AccountEntry(access_key="Nothing", secret_key="secret"))
    assert with_entries((), kinds) == ()


# --- settings -----------------------------------------------------------------------------------

PROVIDER = "org.apache.rocketmq.auth.authentication.provider.{}AuthenticationMetadataProvider"


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"init_authentication_user": '{"username":"u"}'}, "initAuthenticationUser"),
        ({"init_authentication_user": "u:hush"}, "initAuthenticationUser"),
        ({"authentication_metadata_provider": PROVIDER.format("Own")}, "expected org"),
        ({"authorization_strategy": "nonsense"}, "authorizationStrategy"),
        ({"authentication_whitelist": "10,eleven"}, "authenticationWhitelist"),
        ({"authorization_whitelist": "-1"}, "authorizationWhitelist"),
    ],
)
def test_a_senseless_setting_is_refused(values: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as raised:
        UserSettings(**values)  # type: ignore[arg-type]
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("authenticates", "authorizes", "open_codes"),
    [(True, False, {31, 32}), (True, True, {32}), (False, True, {32, 33})],
)
def test_a_request_needs_no_signature_if_nothing_needs_its_user(
    authenticates: bool, authorizes: bool, open_codes: set[int]
) -> None:
    settings = UserSettings(
        authentication_enabled=authenticates,
        authorization_enabled=authorizes,
        authentication_whitelist="31, 32",
        authorization_whitelist="32,33",
    )
    assert settings.open_codes == open_codes
    assert settings.signed_codes == {32, 33}


def test_users_are_kept_when_a_setting_wants_them() -> None:
    assert not UserSettings().keeps_users
    only_kept = UserSettings(authentication_metadata_provider=PROVIDER.format("Local"))
    assert only_kept.keeps_users
    assert not only_kept.checks_requests
    assert UserSettings(authorization_enabled=True).checks_requests
