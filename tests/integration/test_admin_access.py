"""``cometmq admin acl`` on brokers with users, and on brokers with accounts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cometmq.cli.commands import app
from cometmq.testing import ThreadedCluster
from support.brokers.accounts import SECRETS, home_with_accounts

PACKAGE = "org.apache.rocketmq.auth"
PROVIDERS = {
    f"{part}MetadataProvider": f"{PACKAGE}.{part}.provider.Local{part.title()}MetadataProvider"
    for part in ("authentication", "authorization")
}


def run(cluster: ThreadedCluster, words: str, *, given: str = "", code: int = 0) -> Any:
    line = ["admin", "acl", *words.split(), "--json", "-n", cluster.name_servers]
    result = CliRunner().invoke(app, line, input=given)
    assert result.exit_code == code, (words, result.stdout, result.stderr, result.exception)
    assert "a password" not in result.stdout + result.stderr
    return json.loads(result.stdout)


def test_users_and_policies_are_created_copied_changed_and_deleted() -> None:
    with ThreadedCluster(brokers=2, settings=PROVIDERS) as cluster:
        run(cluster, "create-user app --password-file - --broker broker-0", given="a password\n")
        run(cluster, "create-policy User:app --resource Topic:o --action Pub --broker broker-0")
        assert [row["broker"] for row in run(cluster, "users")] == ["broker-0"]
        run(cluster, "copy-users broker-0 broker-1")
        run(cluster, "copy-policies broker-0 broker-1")
        assert [row["user"] for row in run(cluster, "users")] == ["app", "app"]
        run(cluster, "update-policy User:app --resource Topic:o --action Sub --yes")
        policies = run(cluster, "policies")
        assert [(row["resource"], row["actions"]) for row in policies] == [("Topic:o", ["Sub"])] * 2
        run(cluster, "update-user app --status disable --yes")
        assert {row["status"] for row in run(cluster, "users")} == {"disable"}
        for words in (
            "update-user app --status off",
            "update-user app --type Admin",
            "update-policy User:app --resource Topic:o --action Sub --decision Maybe",
        ):
            refused = CliRunner().invoke(
                app, ["admin", "acl", *words.split(), "--yes", "-n", cluster.name_servers]
            )
            assert refused.exit_code != 0, words
            assert ": expected " in f"{refused.exception} {refused.stderr}", words
        [unknown, _] = run(cluster, "delete-user ap --yes", code=1)
        assert (unknown["state"], unknown["error"]) == ("failed", "there is no user ap")
        run(cluster, "delete-policy User:app --yes")
        run(cluster, "delete-user app --yes")
        assert [run(cluster, "users"), run(cluster, "policies")] == [[], []]


def test_a_dry_run_asks_for_no_password() -> None:
    with ThreadedCluster(settings=PROVIDERS) as cluster:
        planned = [
            row
            for words in (
                "create-user app",
                "update-user app --change-password",
                "set-account new-service",
            )
            for row in run(cluster, f"{words} --dry-run")
        ]

    assert [row["state"] for row in planned] == ["planned"] * 3


def test_users_policies_and_files_of_slaves_are_shown_too() -> None:
    """Changes go to slaves as well."""
    with ThreadedCluster(settings=PROVIDERS) as cluster:
        slave = {
            "brokerName": "broker-0", "brokerRole": "SLAVE", "brokerId": "1",
            "namesrvAddr": cluster.name_servers,
        }  # fmt: skip
        with ThreadedCluster(settings=PROVIDERS | slave):
            run(cluster, "create-user app --password-file -", given="a password\n")
            run(cluster, "create-policy User:app --resource Topic:o --action Pub")

            shown = {words: run(cluster, words) for words in ("users", "policies")}

    for rows in shown.values():
        assert [(row["broker"], row["id"]) for row in rows] == [("broker-0", 0), ("broker-0", 1)]


def test_account_files_show_when_they_changed_as_a_number(tmp_path: Path) -> None:
    accounts = tmp_path / "conf" / "plain_acl.yml"
    accounts.parent.mkdir()
    accounts.write_text("globalWhiteRemoteAddresses:\n- 127.0.0.1\n")
    settings = {"aclEnable": "true", "rocketmqHome": str(tmp_path)}
    with ThreadedCluster(settings=settings) as cluster:
        [row] = run(cluster, "account-files")

    assert (row["broker"], row["id"], row["file"]) == ("broker-0", 0, str(accounts))
    assert row["changed_time_ms"] is None or row["changed_time_ms"] > 0


def test_accounts_and_white_addresses_are_set_and_deleted(tmp_path: Path) -> None:
    file = home_with_accounts(tmp_path) / "conf" / "plain_acl.yml"
    settings = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    with ThreadedCluster(settings=settings) as cluster:
        as_operations = account_of(tmp_path, "operations")
        [done] = run(
            cluster,
            "set-account new-service --password-file - --topic Orders=PUB --group billing=SUB"
            f" --topic-perm DENY --group-perm DENY --white-address 10.0.0.9 --yes {as_operations}",
            given="a password of it\n",
        )
        set_account = yaml.safe_load(file.read_text())
        [files] = run(cluster, f"account-files {as_operations}")
        [white] = run(cluster, f"set-white-addresses 10.1.0.1 10.2.0.* --yes {as_operations}")
        addresses = yaml.safe_load(file.read_text())["globalWhiteRemoteAddresses"]
        [deleted] = run(cluster, f"delete-account new-service --yes {as_operations}")
        left = yaml.safe_load(file.read_text())["accounts"]
        [refused] = run(
            cluster,
            f"delete-account operations --yes {account_of(tmp_path, 'order-service')}",
            code=1,
        )

    assert [each["state"] for each in (done, white, deleted)] == ["done"] * 3
    [new] = [each for each in set_account["accounts"] if each["accessKey"] == "new-service"]
    assert new["secretKey"] == "a password of it"
    assert (new["topicPerms"], new["groupPerms"]) == (["Orders=PUB"], ["billing=SUB"])
    assert (new["defaultTopicPerm"], new["defaultGroupPerm"]) == ("DENY", "DENY")
    assert new["whiteRemoteAddress"] == "10.0.0.9"
    assert files["version"] > 0
    assert addresses == ["10.1.0.1", "10.2.0.*"]
    assert [each["accessKey"] for each in left] == ["operations", "order-service"]
    assert "admin" in refused["error"]


def test_a_changed_account_keeps_what_no_option_names(tmp_path: Path) -> None:
    file = home_with_accounts(tmp_path) / "conf" / "plain_acl.yml"
    settings = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    as_operations = account_of(tmp_path, "operations")
    found = []
    with ThreadedCluster(settings=settings) as cluster:
        for options in (
            "--admin --topic Orders=PUB --topic-perm DENY --white-address 10.0.0.9",
            "--group billing=SUB",
            "--white-address= --topic= --group=",
        ):
            words = f"set-account new-service --password-file - {options} --yes {as_operations}"
            run(cluster, words, given="a password of it\n")
            accounts = yaml.safe_load(file.read_text())["accounts"]
            found += [each for each in accounts if each["accessKey"] == "new-service"]

    assert [each["admin"] for each in found] == [True] * 3
    assert [each["topicPerms"] for each in found] == [["Orders=PUB"], ["Orders=PUB"], []]
    assert [each["defaultTopicPerm"] for each in found] == ["DENY"] * 3
    assert [each.get("whiteRemoteAddress") for each in found] == ["10.0.0.9", "10.0.0.9", None]
    assert [each.get("groupPerms") for each in found] == [None, ["billing=SUB"], []]


def account_of(folder: Path, access_key: str) -> str:
    """Return the option with which a command uses an account."""
    file = folder / f"{access_key}.toml"
    file.write_text(
        f'[client]\naccess_key = "{access_key}"\nsecret_key = "{SECRETS[access_key]}"\n'
    )
    file.chmod(0o600)
    return f"--config {file}"


def test_a_broker_without_access_control_says_so_and_the_command_fails() -> None:
    with ThreadedCluster() as cluster:
        changes = run(cluster, "delete-account app --yes", code=1)
        assert run(cluster, "users", code=1) == []
        assert run(cluster, "account-files", code=1) == []

    assert [row["state"] for row in changes] == ["failed"]
    assert "aclEnable=false" in changes[0]["error"]


@pytest.mark.parametrize(
    ("option", "admin"), [("", True), ("--not-admin", False), ("--admin", True)]
)
def test_a_new_secret_key_leaves_an_administrator_what_it_is(
    tmp_path: Path, option: str, admin: bool
) -> None:
    """What is not given stays, so that a new secret key locks no administrator out."""
    file = home_with_accounts(tmp_path) / "conf" / "plain_acl.yml"
    settings = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    with ThreadedCluster(settings=settings) as cluster:
        words = f"set-account operations --password-file - {option} --yes"
        [done] = run(
            cluster, f"{words} {account_of(tmp_path, 'operations')}", given="a password of it\n"
        )

    [account] = [
        each
        for each in yaml.safe_load(file.read_text())["accounts"]
        if each["accessKey"] == "operations"
    ]
    assert (account["secretKey"], account["admin"]) == ("a password of it", admin)
    assert ("not an administrator" in done["detail"]) is not admin
