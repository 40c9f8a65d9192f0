"""Settings of the store that a range cannot check."""

from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError
from cometmq.store import StoreSettings


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
