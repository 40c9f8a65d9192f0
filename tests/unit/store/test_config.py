"""Settings of the store that a range cannot check."""

from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError
from cometmq.store import StoreCorruptError, StoreSettings, kept_log_file_bytes
from cometmq.system.files import Files
from support.stores.small_stores import opened

MIB = 1024 * 1024


def test_several_commit_log_directories_are_refused() -> None:
    with pytest.raises(ConfigError, match="one directory is supported"):
        StoreSettings(root=Path("store"), commit_log_dir=Path("a,b"))


@pytest.mark.parametrize("hour", ["24", "25", "-1", "abc", "", "4h"])
def test_an_hour_of_deletion_that_never_comes_is_refused(hour: str) -> None:
    with pytest.raises(ConfigError, match=f"deleteWhen: met .{hour}., expected hours from 00"):
        StoreSettings(root=Path("store"), delete_when=("04", hour))


def test_delay_levels_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel: met 'x' as level 2 of '1s x'"):
        StoreSettings(root=Path("store"), delay_levels="1s x")


def with_a_file(root: Path, size_bytes: int) -> None:
    (root / "commitlog").mkdir()
    with (root / "commitlog" / ("0" * 20)).open("wb") as file:
        file.truncate(size_bytes)


@pytest.mark.parametrize(("met", "setting"), [(64, 1024), (1024, 64), (64, 16), (1024, 1024)])
def test_files_of_a_default_size_keep_it(met: int, setting: int, tmp_path: Path) -> None:
    with_a_file(tmp_path, met * MIB)
    settings = StoreSettings(root=tmp_path, commit_log_file_bytes=setting * MIB)

    assert kept_log_file_bytes(settings, Files()) == met * MIB


@pytest.mark.parametrize("met", [0, 4096, 512 * MIB, 1024 * MIB - 4096])
def test_a_file_of_another_size_may_be_cut_off_so_the_setting_decides(
    met: int, tmp_path: Path
) -> None:
    with_a_file(tmp_path, met)
    settings = StoreSettings(root=tmp_path)

    assert kept_log_file_bytes(settings, Files()) == 1024 * MIB
    if met:
        with pytest.raises(StoreCorruptError, match=f"a file of {met} bytes"):
            opened(tmp_path, commit_log_file_bytes=1024 * MIB)


def test_a_store_without_files_gets_those_of_the_settings(tmp_path: Path) -> None:
    settings = StoreSettings(root=tmp_path, commit_log_file_bytes=16 * MIB)

    assert kept_log_file_bytes(settings, Files()) == 16 * MIB
