"""Files are dropped from the page cache, mapped or not."""

import mmap
import os
import subprocess
import tempfile
from pathlib import Path

import cold
import pytest

BUILD = Path(__file__).resolve().parents[3] / "build"
SIZE = 8 << 20


@pytest.fixture
def folder():
    """A folder beside the sources: those of other unit tests may be in memory."""
    BUILD.mkdir(exist_ok=True)
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(BUILD)], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{BUILD} is in memory ({kind}), there is no disk to read from")
    with tempfile.TemporaryDirectory(dir=BUILD) as made:
        yield Path(made)


def fill(path: Path):
    path.write_bytes(os.urandom(SIZE))
    return cold.cached_mib([path])


def test_files_that_are_only_cached_are_dropped(folder):
    path = folder / "log"
    assert fill(path) == pytest.approx(SIZE / 2**20)
    assert cold.drop([], folder, 0.1) <= 0.1
    assert path.stat().st_size == SIZE


def test_files_that_a_process_has_mapped_are_dropped_too(folder):
    path = folder / "log"
    fill(path)
    data = path.read_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert bytes(mapping[:]) == data
        try:
            left_mib = cold.drop([os.getpid()], folder, 0.1)
        except cold.ColdError as refused:
            pytest.skip(str(refused))
        assert left_mib <= 0.1
        assert bytes(mapping[:]) == data
