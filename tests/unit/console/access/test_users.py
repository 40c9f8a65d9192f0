"""The file of users, and their passwords."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.console.access.users import (
    FILE_BYTES_MAX,
    Users,
    add_user,
    is_password_of,
    read_users,
)
from cometmq.console.pages import Role
from cometmq.model.errors import ConfigError
from support.checks.cases import case

PASSWORD = "correct horse battery"
HASH = "$argon2id$v=19$m=1,t=1,p=1$YWJjZGVmZ2g$YWJjZA"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_a_user_that_was_added_has_a_role_and_one_password(path: Path) -> None:
    add_user(path, "ada", Role.OPERATOR, PASSWORD)
    add_user(path, "bob", Role.READER, PASSWORD)
    users = Users(path)

    ada = users.find("ada")
    assert ada is not None
    assert ada.role is Role.OPERATOR
    assert PASSWORD not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert is_password_of(ada, PASSWORD)
    assert not is_password_of(ada, f"{PASSWORD}!")
    assert not is_password_of(None, PASSWORD)
    assert users.find("eve") is None


def test_a_changed_file_counts_at_the_next_request(path: Path) -> None:
    add_user(path, "ada", Role.READER, PASSWORD)
    users = Users(path)
    add_user(path, "ada", Role.ADMINISTRATOR, PASSWORD)
    found = users.find("ada")
    assert found is not None
    assert found.role is Role.ADMINISTRATOR

    path.write_text("# nobody\n")
    assert users.find("ada") is None
    path.write_text("ada:reader\n")
    with pytest.raises(ConfigError, match="users:1: expected name:role:hash"):
        users.find("ada")
    path.unlink()
    with pytest.raises(ConfigError, match="console-user"):
        users.find("ada")


def test_a_file_that_is_no_file_of_users_is_refused(path: Path) -> None:
    contents = {
        "a name with a blank": f"a da:reader:{HASH}",
        "no hash": "ada:reader:",
        "a password in clear": "ada:reader:secret",
        "an unknown role": f"ada:king:{HASH}",
        "a name twice": f"ada:reader:{HASH}\nada:operator:{HASH}",
        "a file that is too large": "#" * (FILE_BYTES_MAX + 1),
    }
    for name, content in contents.items():
        path.write_text(content)
        with case(name), pytest.raises(ConfigError, match="expected"):
            read_users(path)


def test_a_name_or_password_that_cannot_be_used_writes_nothing(path: Path) -> None:
    for name, password in (("a:b", PASSWORD), ("", PASSWORD), ("ada", "short"), ("ada", "x" * 300)):
        with pytest.raises(ConfigError, match="expected"):
            add_user(path, name, Role.READER, password)
    assert list(path.parent.iterdir()) == []
