"""The id that a controller gave to this broker, over starts and crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.failover.identity import (
    INCARNATIONS_MAX,
    Applied,
    IdentityFiles,
    StoreIdentity,
    StoreIdentityFile,
)
from cometmq.model.errors import ConfigError, StoreError
from cometmq.system.files import Files
from golden.recordings import VECTORS

RECORDED = VECTORS / "ha/5.3.3-controller" / "files"


def identity(folder: Path, *, cluster: str = "HaCluster", name: str = "broker-a") -> IdentityFiles:
    return IdentityFiles(folder, Files(), cluster=cluster, name=name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_store_has_none(tmp_path: Path) -> None:
    assert identity(tmp_path).broker_id() is None
    assert identity(tmp_path).applied() is None


def test_the_files_of_an_application(tmp_path: Path) -> None:
    applied = Applied(2, "127.0.0.1:10911;1764000000000")
    identity(tmp_path).save_application(applied)
    text = (tmp_path / "brokerIdentity-temp").read_text()
    assert text == "HaCluster#broker-a#2#127.0.0.1:10911;1764000000000"
    assert identity(tmp_path).applied() == applied
    assert identity(tmp_path).broker_id() is None
    identity(tmp_path).save_id(2)
    recorded = RECORDED / "3-second-master.broker2.brokerIdentity"
    assert (tmp_path / "brokerIdentity").read_bytes() == recorded.read_bytes()
    assert identity(tmp_path).broker_id() == 2
    assert names(tmp_path) == ["brokerIdentity"]


def test_an_application_that_was_refused_is_forgotten(tmp_path: Path) -> None:
    found = identity(tmp_path)
    found.save_application(Applied(1, "a;1"))
    found.save_application(Applied(2, "a;2"))
    found.remove_application()
    assert found.applied() is None
    assert names(tmp_path) == []


@pytest.mark.parametrize(("cluster", "name"), [("Other", "broker-a"), ("HaCluster", "broker")])
def test_the_store_of_another_broker_is_refused(tmp_path: Path, cluster: str, name: str) -> None:
    identity(tmp_path).save_id(2)
    identity(tmp_path).save_application(Applied(2, "a;1"))
    other = identity(tmp_path, cluster=cluster, name=name)
    with pytest.raises(ConfigError, match="this store belongs to another broker"):
        other.broker_id()
    with pytest.raises(ConfigError, match="this store belongs to another broker"):
        other.applied()


@pytest.mark.parametrize("broken", ["", "0", "-1", "x", "1_0", "²", str(2**63), "9" * 5000])
def test_a_damaged_id_is_refused(tmp_path: Path, broken: str) -> None:
    (tmp_path / "brokerIdentity").write_text(f"HaCluster#broker-a#{broken}")
    with pytest.raises(StoreError, match="expected a number of 1 or more"):
        identity(tmp_path).broker_id()


def test_an_application_without_a_check_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity-temp").write_text("HaCluster#broker-a#2")
    with pytest.raises(StoreError, match="met no check code"):
        identity(tmp_path).applied()


# --- the names of the store -----------------------------------------------------------------------


def begin(folder: Path, *, has_id: bool = True, stopped_cleanly: bool = True) -> StoreIdentity:
    file = StoreIdentityFile(folder, Files())
    return file.begin(has_id=has_id, stopped_cleanly=stopped_cleanly)


def test_each_start_has_an_incarnation_and_keeps_those_before(tmp_path: Path) -> None:
    first = begin(tmp_path)
    second = begin(tmp_path)
    assert second.store_id == first.store_id
    assert second.incarnation != first.incarnation
    assert (first.earlier, second.earlier) == ((), (first.incarnation,))
    for _ in range(INCARNATIONS_MAX):
        last = begin(tmp_path)
    assert len(last.earlier) == INCARNATIONS_MAX - 1
    assert begin(tmp_path).earlier[0] == last.incarnation


def test_a_start_has_one_incarnation(tmp_path: Path) -> None:
    file = StoreIdentityFile(tmp_path, Files())
    assert file.identity is None
    begun = file.begin(has_id=False, stopped_cleanly=True)
    assert file.begin(has_id=True, stopped_cleanly=False) == file.identity == begun


def test_an_unclean_stop_is_kept_until_the_controller_knows_it(tmp_path: Path) -> None:
    assert not begin(tmp_path, stopped_cleanly=False).stopped_cleanly
    file = StoreIdentityFile(tmp_path, Files())
    assert not file.begin(has_id=True, stopped_cleanly=True).stopped_cleanly
    file.registered("a" * 32)
    after = begin(tmp_path)
    assert after.stopped_cleanly
    assert after.set_id == "a" * 32


def test_a_store_without_an_id_is_another_store_of_the_same_set(tmp_path: Path) -> None:
    file = StoreIdentityFile(tmp_path, Files())
    before = file.begin(has_id=True, stopped_cleanly=True)
    file.registered("b" * 32)
    copy = begin(tmp_path, has_id=False)
    assert copy.store_id != before.store_id
    assert (copy.set_id, copy.earlier) == ("b" * 32, ())


@pytest.mark.parametrize("torn", [b"", b"\0" * 40, b"123\nsetId="])
def test_a_torn_file_of_names_is_older_by_one_start(tmp_path: Path, torn: bytes) -> None:
    first = begin(tmp_path)
    begin(tmp_path)
    (tmp_path / "storeIdentity").write_bytes(torn)
    third = begin(tmp_path)
    assert (third.store_id, third.earlier) == (first.store_id, (first.incarnation,))


@pytest.mark.parametrize(
    "text",
    [
        "1\nstoreId=a\n",
        "4935249\nsetId=\nstoreId=x\nincarnations=y\nstopped=cleanly\n",
        "é",
    ],
)
def test_damaged_names_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "storeIdentity").write_text(text)
    with pytest.raises(StoreError, match="remove it and its backup"):
        StoreIdentityFile(tmp_path, Files())
