"""The id that a controller gave to this broker, over starts and crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.failover.identity import Applied, IdentityFiles
from cometmq.model.errors import ConfigError, StoreError
from cometmq.system.files import SystemFiles
from golden.recordings import VECTORS

RECORDED = VECTORS / "ha/5.3.3-controller" / "files"


def identity(folder: Path, *, cluster: str = "HaCluster", name: str = "broker-a") -> IdentityFiles:
    return IdentityFiles(folder, SystemFiles(), cluster=cluster, name=name)


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
