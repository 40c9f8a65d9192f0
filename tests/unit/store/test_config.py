"""Settings of the store that a range cannot check."""

from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError
from cometmq.store import StoreSettings


def test_several_commit_log_directories_are_refused() -> None:
    with pytest.raises(ConfigError, match="one directory is supported"):
        StoreSettings(root=Path("store"), commit_log_dir=Path("a,b"))
