"""Accounts of plain access control: their files, how they are read, changed and read again."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from cometmq.access.needs import Action, Need, Needs, ResourceType, group_need, needs_of, topic_need
from cometmq.access.plain.account import WHITE_SENDER, AccountEntry, PlainAccount
from cometmq.access.plain.account_file import FILE_BYTES_MAX, parse
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ConfigError, ResponseError
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles
from support.wire.fake_transport import Wired

TEXT = """
globalWhiteRemoteAddresses:
- 10.10.*.*
accounts:
- accessKey: Administrator
  secretKey: 12345678
  admin: true
- accessKey: Orders-1
  secretKey: orders-secret
  whiteRemoteAddress: 10.7.7.7
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [Orders=PUB|SUB, "Bills = PUB ", Odd=WRITE]
  groupPerms:
  - shop=DENY
"""
SECRETS = ("12345678", "orders-secret")


def account(**values: object) -> PlainAccount:
    entry = {"access_key": "Orders-1", "secret_key": "orders-secret", **values}
    return PlainAccount(AccountEntry(**entry))  # type: ignore[arg-type]


class Home:
    """A home directory with accounts."""

    def __init__(self, folder: Path, text: str = TEXT) -> None:
        self.main = folder / "conf" / "plain_acl.yml"
        self.main.parent.mkdir(parents=True)
        self.main.write_text(text)
        self.files = FaultyFiles()
        self.clock = ManualClock()
        self.accounts = PlainAccounts(folder, self.files, self.clock)

    def further(self, name: str, text: str) -> Path:
        path = self.main.parent / "acl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def replace(self, text: str, path: Path | None = None) -> None:
        """Change a file as editors do, and let the accounts look at it."""
        path = path or self.main
        fresh = path.with_name("fresh")
        fresh.write_text(text)
        fresh.replace(path)
        self.accounts.reload()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.accounts.load()
    return home


async def sender(home: Home, access_key: str, host: str = "10.1.1.1") -> object:
    """The account that a request from an address has, or the code and the remark of its refusal."""
    wired = Wired(peer=(host, 4000))
    try:
        return home.accounts.sender_of(wired.connection, access_key)
    except ResponseError as refusal:
        return refusal.code, refusal.remark


# --- one account --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pub", "sub"),
    [("PUB", True, False), ("SUB", False, True), ("PUB|SUB", True, True), ("SUB|PUB", True, True),
     (" PUB ", True, False), ("DENY", False, False), ("", False, False), ("pub", False, False),
     ("SUB| PUB", False, False), ("PUB|PUB", False, False), ("ANY", False, False)],
)  # fmt: skip
def test_a_permission_allows_what_it_says(text: str, pub: bool, sub: bool) -> None:
    listed = account(topic_perms=[f"T={text}"])
    by_default = account(default_topic_perm=text)
    for each in (listed, by_default):
        assert each.may(Need(ResourceType.TOPIC, "T", Action.PUB)) is pub
        assert each.may(Need(ResourceType.TOPIC, "T", Action.SUB)) is sub
    assert not listed.may(Need(ResourceType.TOPIC, "Other", Action.PUB))
    assert not listed.may(Need(ResourceType.GROUP, "T", Action.SUB))


def test_a_listed_name_has_no_default() -> None:
    limited = account(default_topic_perm="PUB|SUB", topic_perms=["T=DENY"])
    assert limited.refusal(310, needs_of(topic_need("T", Action.PUB))) == (
        "No default permission for topic:T"
    )
    assert limited.refusal(310, needs_of(topic_need("U", Action.PUB))) is None


def test_a_retry_topic_is_its_group() -> None:
    member = account(group_perms=["g=SUB"])
    assert member.refusal(11, needs_of(topic_need("%RETRY%g", Action.SUB))) is None
    assert member.refusal(10, needs_of(topic_need("%RETRY%g", Action.PUB))) is None
    assert member.refusal(11, needs_of(topic_need("%DLQ%g", Action.SUB))) is not None
    assert member.refusal(11, needs_of(group_need("h"))) == "No default permission for group:h"


def test_every_account_may_send_traces_but_not_read_them() -> None:
    assert account().may(Need(ResourceType.TOPIC, "RMQ_SYS_TRACE_TOPIC", Action.PUB))
    assert not account().may(Need(ResourceType.TOPIC, "RMQ_SYS_TRACE_TOPIC", Action.SUB))


def test_an_administrator_is_held_to_lists_but_may_administer() -> None:
    free, listed = account(admin=True), account(admin=True, topic_perms=["T=PUB"])
    assert free.may_do_everything
    assert not listed.may_do_everything
    assert account(admin=True, topic_perms=[]).may_do_everything
    assert listed.refusal(17, Needs(administrator=True)) is None
    assert listed.refusal(310, needs_of(topic_need("U", Action.PUB))) is not None
    assert account().refusal(17, Needs(administrator=True)) == (
        "Need admin permission for request code=17, but accessKey=Orders-1 is not"
    )


@pytest.mark.parametrize(
    ("values", "met"),
    [
        ({"access_key": "short"}, "accessKey has 5 characters"),
        ({"secret_key": "short"}, "secretKey has 5 characters"),
        ({"topic_perms": ["T"]}, "'T'"),
        ({"topic_perms": ["T=PUB=SUB"]}, "'T=PUB=SUB'"),
        ({"group_perms": ["g"]}, "'g'"),
        ({"white_remote_address": "1.2.3"}, "'1.2.3'"),
    ],
)
def test_a_bad_account_is_refused_with_the_reason(values: dict[str, object], met: str) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        account(**values)
    assert met in str(caught.value)
    assert "orders-secret" not in str(caught.value)


# --- one file -----------------------------------------------------------------------------------


def test_scalars_are_texts_as_they_stand() -> None:
    text = "accounts:\n- {accessKey: 20240101, secretKey: 0123456789, admin: True}\n"
    entry = parse(text.encode()).entry("20240101")
    assert entry is not None
    assert (entry.secret_key, entry.admin) == ("0123456789", True)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "accounts:\n", "globalWhiteRemoteAddresses:\n"]
)
def test_a_file_may_have_no_accounts(text: str) -> None:
    file = parse(text.encode())
    assert (dict(file.accounts), list(file.addresses)) == ({}, [])


@pytest.mark.parametrize(
    "text",
    [
        "accounts: [\n- {{{ orders-secret",
        "accounts:\n- accessKey: Orders-1\n  secretKey: *orders-secret\n",
        "accounts:\n- accessKey: Orders-1\n  secretKey: !orders-secret x\n",
        "accounts:\n- accessKey: Orders-1\n  secretKey: [orders-secret]\n",
        "accounts:\n- accessKey: Orders-1\n  secretKey: {orders-secret: 1}\n",
        "accounts:\n- accessKey: Orders-1\n  secretKey:\torders-secret\n\tx",
        "accounts:\n- orders-secret\n",
        "accounts: orders-secret\n",
        "- orders-secret\n",
        "orders-secret",
        "accounts:\n- accessKey: Orders-1\n  secretKey: orders-secret\n  topicPerms: T=PUB\n",
        "accounts:\n- accessKey: Orders-1\n",
        "accounts:\n- secretKey: orders-secret\n",
        "accounts:\n" + 2 * "- {accessKey: Orders-1, secretKey: orders-secret}\n",
        "globalWhiteRemoteAddresses: [300.1.2.3]\n# orders-secret\n",
    ],
)
def test_a_broken_file_is_refused_without_a_word_of_its_secrets(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode())
    assert "orders-secret" not in f"{caught.value!r}{caught.value.__cause__}"


def test_files_of_any_size_and_depth_are_read_in_bounded_time() -> None:
    with pytest.raises(ConfigError, match="bytes"):
        parse(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=r"more than 32 levels deep|not YAML"):  # newer PyYAML
        parse(b"accounts: " + b"[" * 100_000)
    with pytest.raises(ConfigError, match="UTF-8"):
        parse(b"accounts: \xff")


def test_no_text_of_an_account_shows_its_secret(home: Home) -> None:
    file = parse(TEXT.encode())
    entry = file.entry("Orders-1")
    texts = repr([file, entry, file.accounts, file.accounts["Orders-1"].signing_key])
    assert not any(secret in texts for secret in SECRETS)


# --- finding ------------------------------------------------------------------------------------


async def test_a_sender_is_found_by_its_key(home: Home) -> None:
    found = await sender(home, "Orders-1")
    assert isinstance(found, PlainAccount)
    assert found.name == "Orders-1"
    assert await sender(home, "orders-1") == (1, "No acl config for orders-1")
    assert await sender(home, "") == (1, "No accessKey is configured")


async def test_white_addresses_need_no_signature(home: Home) -> None:
    assert await sender(home, "", "10.10.3.4") is WHITE_SENDER
    assert await sender(home, "Unknown", "10.10.3.4") is WHITE_SENDER
    assert await sender(home, "Orders-1", "10.7.7.7") is WHITE_SENDER
    assert isinstance(await sender(home, "Administrator", "10.7.7.7"), PlainAccount)
    assert await sender(home, "", "10.7.7.7") == (1, "No accessKey is configured")


async def test_ipv6_senders_are_found_by_address(tmp_path: Path) -> None:
    home = Home(tmp_path, TEXT.replace("10.10.*.*", "2001:db8::*"))
    home.accounts.load()
    assert await sender(home, "", "2001:db8::5") is WHITE_SENDER
    assert await sender(home, "", "2001:db9::5") == (1, "No accessKey is configured")


# --- files --------------------------------------------------------------------------------------


def test_without_a_file_nothing_starts(tmp_path: Path) -> None:
    accounts = PlainAccounts(tmp_path, FaultyFiles(), ManualClock())
    with pytest.raises(ConfigError, match=r"plain_acl\.yml"):
        accounts.load()


def test_access_control_needs_the_directory_of_its_files() -> None:
    with pytest.raises(ConfigError, match="rocketmqHome"):
        BrokerSettings(broker_name="b", acl_enable=True)


def test_without_pyyaml_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "cometmq.access.plain.account_file"
    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"\[acl\]"):
        importlib.import_module(module)


def test_with_a_broken_file_nothing_starts(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.further("more.yml", "accounts: [")
    with pytest.raises(ConfigError, match=r"more\.yml"):
        home.accounts.load()


async def test_a_changed_file_counts_and_an_unchanged_one_is_not_read(home: Home) -> None:
    before = home.accounts.state
    home.accounts.reload()
    assert home.accounts.state is before

    home.replace(TEXT.replace("Orders-1", "Orders-2"))
    assert await sender(home, "Orders-1") == (1, "No acl config for Orders-1")
    assert isinstance(await sender(home, "Orders-2"), PlainAccount)


async def test_white_addresses_change_with_their_file(home: Home) -> None:
    assert await sender(home, "", "10.10.3.4") is WHITE_SENDER
    home.replace(TEXT.replace("10.10.*.*", "10.11.*.*"))
    assert await sender(home, "", "10.10.3.4") == (1, "No accessKey is configured")
    assert await sender(home, "", "10.11.3.4") is WHITE_SENDER


async def test_a_broken_file_keeps_what_it_said_and_is_reported_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    before = home.accounts.state
    with caplog.at_level(logging.INFO):
        home.replace("accounts: [\n- orders-secret")
        home.accounts.reload()
        home.accounts.reload()
    assert home.accounts.state is before
    assert isinstance(await sender(home, "Orders-1"), PlainAccount)
    assert caplog.text.count("cannot be used") == 1
    assert str(home.main) in caplog.text
    assert "orders-secret" not in caplog.text

    caplog.clear()
    with caplog.at_level(logging.INFO):
        home.replace(TEXT.replace("Orders-1", "Orders-2"))
    assert isinstance(await sender(home, "Orders-2"), PlainAccount)
    assert "accounts changed" in caplog.text


async def test_a_file_that_is_being_written_waits_for_the_next_look(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, read = TEXT.replace("Orders-1", "Orders-2"), home.files.read

    def read_and_write_on(path: Path) -> bytes | None:
        data = read(path)
        home.main.write_text(whole)
        return data

    home.main.write_text("accounts: []\n")
    monkeypatch.setattr(home.files, "read", read_and_write_on)
    home.accounts.reload()
    assert isinstance(await sender(home, "Orders-1"), PlainAccount)
    monkeypatch.undo()
    home.accounts.reload()
    assert isinstance(await sender(home, "Orders-2"), PlainAccount)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Take all file descriptors of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_all_accounts_stay_until_files_can_be_read(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    path = home.further("more.yml", "accounts:\n- {accessKey: Orders-2, secretKey: orders-secret}")
    home.accounts.reload()
    before = home.accounts.state
    with no_descriptors():
        home.accounts.reload()
        home.accounts.reload()
        assert home.accounts.state is before
    assert sum("Too many open files" in line for line in caplog.messages) == 1
    path.unlink()
    home.accounts.reload()
    assert await sender(home, "Orders-2") == (1, "No acl config for Orders-2")


async def test_a_file_that_changed_while_there_were_no_descriptors_is_read_later(
    home: Home,
) -> None:
    home.main.write_text(TEXT.replace("Orders-1", "Orders-3"))
    with no_descriptors():
        home.accounts.reload()
        assert isinstance(await sender(home, "Orders-1"), PlainAccount)
    home.accounts.reload()
    assert await sender(home, "Orders-1") == (1, "No acl config for Orders-1")
    assert isinstance(await sender(home, "Orders-3"), PlainAccount)


@pytest.mark.parametrize("name", ["stat", "read"])
async def test_an_error_of_the_disk_is_no_missing_file(
    home: Home, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(home.main))

    before = home.accounts.state
    home.main.write_text(TEXT.replace("Orders-1", "Orders-3"))
    with monkeypatch.context() as patched:
        patched.setattr(Path if name == "stat" else home.files, name, fail)
        home.accounts.reload()
    assert home.accounts.state is before
    home.accounts.reload()
    assert isinstance(await sender(home, "Orders-3"), PlainAccount)


def test_nothing_starts_if_the_disk_does_not_say_which_files_there_are(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    (home.main.parent / "acl").mkdir()
    with no_descriptors(), pytest.raises(ConfigError, match="acl: Too many open files"):
        home.accounts.load()


async def test_further_files_come_and_go(home: Home) -> None:
    more = TEXT.replace("Orders-1", "Orders-2").replace("Administrator", "Administrator-2")
    path = home.further("deep/more.yaml", more)
    home.further("tools.yml", TEXT.replace("Orders-1", "Tools-1"))
    home.further("notes.txt", TEXT.replace("Orders-1", "Notes-1"))
    home.accounts.reload()
    assert isinstance(await sender(home, "Orders-2"), PlainAccount)
    assert await sender(home, "Tools-1") == (1, "No acl config for Tools-1")
    assert await sender(home, "Notes-1") == (1, "No acl config for Notes-1")

    path.unlink()
    home.accounts.reload()
    assert await sender(home, "Orders-2") == (1, "No acl config for Orders-2")
    assert isinstance(await sender(home, "Orders-1"), PlainAccount)


async def test_of_two_files_with_one_account_the_first_counts(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.further("more.yml", "accounts:\n- {accessKey: Orders-1, secretKey: another, admin: true}")
    home.accounts.reload()
    found = await sender(home, "Orders-1")
    assert isinstance(found, PlainAccount)
    assert not found.is_administrator
    assert "in two files" in caplog.text
    assert "Orders-1" in caplog.text


async def test_accounts_of_the_main_file_end_with_it(home: Home) -> None:
    home.main.unlink()
    home.accounts.reload()
    assert await sender(home, "Orders-1") == (1, "No acl config for Orders-1")


def test_a_file_that_others_may_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home(tmp_path)
    home.main.chmod(0o644)
    home.accounts.load()
    assert "chmod" in caplog.text
    caplog.clear()
    home.main.chmod(0o640)
    home.accounts.load()
    assert "chmod" not in caplog.text


# --- changes by request -------------------------------------------------------------------------


def put(home: Home, **changes: object) -> None:
    """Add an account, or change what is named."""

    def change(old: AccountEntry | None) -> AccountEntry:
        values = {"access_key": "Orders-1", "secret_key": "orders-secret"}
        if old is not None:
            values = {name: getattr(old, name) for name in old.__struct_fields__}
        return AccountEntry(**(values | changes))  # type: ignore[arg-type]

    home.accounts.put_account(str(changes.get("access_key", "Orders-1")), change)


async def test_a_change_is_in_force_and_in_the_file(home: Home) -> None:
    put(home, admin=True)
    found = await sender(home, "Orders-1")
    assert isinstance(found, PlainAccount)
    assert found.is_administrator
    read_again = parse(home.main.read_bytes())
    entry = read_again.entry("Orders-1")
    assert entry is not None
    assert entry.admin
    assert entry.topic_perms == ["Orders=PUB|SUB", "Bills = PUB ", "Odd=WRITE"]
    assert read_again.version.counter == 1


def test_a_change_is_not_read_again(home: Home) -> None:
    put(home, access_key="Orders-3")
    state = home.accounts.state
    home.accounts.reload()
    assert home.accounts.state is state


def test_a_change_keeps_what_it_does_not_know(home: Home) -> None:
    more = "- {accessKey: Orders-9, secretKey: ninth-secret, owner: shop}\nteam: [a, b]\n"
    home.replace(TEXT + more)
    home.accounts.put_account(
        "Orders-9", lambda old: AccountEntry(access_key="Orders-9", secret_key="tenth-secret")
    )
    document = yaml.safe_load(home.main.read_text())
    assert document["team"] == ["a", "b"]
    assert document["accounts"][-1]["owner"] == "shop"
    assert document["accounts"][-1]["secretKey"] == "tenth-secret"


def test_accounts_that_are_not_changed_are_administrators_in_the_same_form(home: Home) -> None:
    home.replace(TEXT + "- {accessKey: Orders-8, secretKey: eighth-secret, admin: true}\n")
    put(home, access_key="Orders-9", admin=True)

    accounts = yaml.safe_load(home.main.read_text())["accounts"]
    assert [each["admin"] for each in accounts if each["accessKey"] >= "Orders-8"] == [True, True]


@pytest.mark.parametrize(
    "secret", ["01234567", "yes-or-no", "~~~~~~~", "a: b # c", "ümläut!", "'" * 7]
)
async def test_any_secret_survives_the_file(home: Home, secret: str) -> None:
    put(home, access_key="Orders-4", secret_key=secret)
    entry = parse(home.main.read_bytes()).entry("Orders-4")
    assert entry is not None
    assert entry.secret_key == secret


async def test_an_account_is_changed_in_the_file_that_has_it(home: Home) -> None:
    path = home.further("more.yml", "accounts:\n- {accessKey: Orders-5, secretKey: fifth-secret}\n")
    home.accounts.reload()
    main = home.main.read_bytes()
    put(home, access_key="Orders-5", admin=True)
    assert home.main.read_bytes() == main
    assert "admin: true" in path.read_text()
    home.accounts.delete_account("Orders-5")
    assert "Orders-5" not in path.read_text()
    assert await sender(home, "Orders-5") == (1, "No acl config for Orders-5")


def test_an_account_that_is_not_there_is_not_deleted(home: Home) -> None:
    with pytest.raises(ConfigError, match="Missing"):
        home.accounts.delete_account("Missing-1")


@pytest.mark.parametrize(
    "changes",
    [{"secret_key": "short"}, {"white_remote_address": "1.2.3"}, {"topic_perms": ["T"]}],
)  # fmt: skip
async def test_a_wrong_change_changes_nothing(home: Home, changes: dict[str, object]) -> None:
    before, state = home.main.read_bytes(), home.accounts.state
    with pytest.raises(ConfigError):
        put(home, **changes)
    assert (home.main.read_bytes(), home.accounts.state) == (before, state)


async def test_a_change_that_cannot_be_written_is_refused(home: Home) -> None:
    before, state = home.main.read_bytes(), home.accounts.state
    home.files.fail_sync = True
    with pytest.raises(ConfigError, match="cannot write"):
        put(home, admin=True)
    assert (home.main.read_bytes(), home.accounts.state) == (before, state)
    assert [path.name for path in home.main.parent.iterdir()] == ["plain_acl.yml"]


def test_a_change_meets_the_file_as_it_is_now(home: Home) -> None:
    """An editor may have saved since the last look."""
    home.main.write_text(TEXT.replace("shop=DENY", "market=SUB"))
    put(home, admin=True)
    assert "market=SUB" in home.main.read_text()


def test_white_addresses_are_replaced(home: Home) -> None:
    home.accounts.put_addresses(str(home.main), ["10.50.*.*", "10.51.0.1"])
    assert home.accounts.addresses() == ["10.50.*.*", "10.51.0.1"]
    assert home.accounts.versions()[home.main].counter == 1
    home.accounts.put_addresses(None, [])
    assert home.accounts.addresses() == []


@pytest.mark.parametrize(
    ("path", "addresses"), [("/etc/passwd", []), ("", ["300.1.2.3"]), ("/", []), ("x", [])]
)
def test_white_addresses_of_no_file_or_wrong_ones_are_refused(
    home: Home, path: str, addresses: list[str]
) -> None:
    with pytest.raises(ConfigError):
        home.accounts.put_addresses(path or None, addresses)
    assert home.accounts.addresses() == ["10.10.*.*"]


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_written_file_has_the_readers_that_it_had(home: Home, mode: int) -> None:
    home.main.chmod(mode)
    (home.main.parent / "plain_acl.yml.tmp").write_text("left behind, for everybody")
    put(home, admin=True)
    assert home.main.stat().st_mode & 0o777 == mode
    assert [path.name for path in home.main.parent.iterdir()] == ["plain_acl.yml"]
