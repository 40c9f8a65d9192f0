"""Each way to bring the package to executors that do not have it, on a real cluster.

The executors' interpreter is a bare environment: what the package depends on, without the package.
The driver has it on its PYTHONPATH, which executors of a standalone cluster do not inherit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import LAUNCHER

from support.spark.recipes import recipe
from support.stores.small_stores import opened, put

pytestmark = pytest.mark.standalone_only

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
MESSAGES = 40
DRIVER = """
import sys
from pyspark.sql import SparkSession
from cometmq.spark import register

builder = SparkSession.builder.master(sys.argv[1])
for pair in sys.argv[3:]:
    builder = builder.config(*pair.split("=", 1))
spark = builder.getOrCreate()
register(spark)
log = spark.read.format("rocketmq-log").schema("topic STRING NOT NULL").load(sys.argv[2])
print("rows", log.count())

def kernel(_):
    from cometmq.spark import columns
    return columns.__file__

print("kernel", spark.sparkContext.parallelize([0], 1).map(kernel).first())
"""
"""Reads a log on the cluster, and says where executors have the kernel from."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of its own: the session of the tests has all cores of the other."""
    launcher = (sys.executable, "-S", str(LAUNCHER))
    folder = tmp_path_factory.mktemp("shipping")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)  # the tests' own: executors would inherit it
        small_cluster = recipe("08_small_cluster").StandaloneCluster
        with small_cluster(1, "1g", folder=folder, launcher=launcher) as cluster:
            yield cluster.master


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with all that the package needs, but without the package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "env", symlinks=True)
    libraries = folder / "libraries"
    libraries.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "cometmq" not in entry.name and entry.suffix != ".pth":
            (libraries / entry.name).symlink_to(entry)
    (site_of(folder / "env") / "libraries.pth").write_text(f"{libraries}\n")
    return folder / "env"


@pytest.fixture(scope="module")
def commit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = opened(tmp_path_factory.mktemp("store") / "store")
    for number in range(MESSAGES):
        put(store, b"message %d" % number)
    store.close()
    return Path(store.settings.root) / "commitlog"


def site_of(environment: Path) -> Path:
    (found,) = (environment / "lib").glob("python*/site-packages")
    return found


def package_files() -> Iterator[Path]:
    """The package as it is installed: modules, and what is compiled of them."""
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix in (".py", ".so") and "egg-info" not in str(path):
            yield path


def start(
    master: str, commit_log: Path, python: str, *conf: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "PYSPARK_PYTHON": python}
    settings = (
        "spark.driver.host=127.0.0.1", "spark.ui.enabled=false", "spark.driver.memory=512m",
        "spark.executor.memory=512m", "spark.log.level=ERROR",
    )  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", DRIVER, master, str(commit_log), *settings, *conf],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_without_the_package_executors_say_that_it_is_missing(
    master: str, bare: Path, commit_log: Path, tmp_path: Path
) -> None:
    done = start(master, commit_log, str(bare / "bin" / "python"), cwd=tmp_path)

    assert done.returncode != 0
    assert "No module named 'cometmq'" in done.stdout + done.stderr


def test_a_zip_of_the_package_works_interpreted(
    master: str, bare: Path, commit_log: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "cometmq.zip", "w") as archive:
        for path in package_files():
            if path.suffix == ".py":
                archive.write(path, path.relative_to(SOURCES))

    done = start(
        master, commit_log, str(bare / "bin" / "python"),
        f"spark.submit.pyFiles={tmp_path / 'cometmq.zip'}", cwd=tmp_path,
    )  # fmt: skip

    assert f"rows {MESSAGES}\n" in done.stdout, done.stdout + done.stderr
    assert "cometmq.zip/cometmq/spark/columns.py\n" in done.stdout


def test_an_archive_of_the_package_brings_the_compiled_kernel(
    master: str, bare: Path, commit_log: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "deps.tar.gz", "w:gz", compresslevel=1) as archive:
        for path in package_files():
            archive.add(path, str(path.relative_to(SOURCES)))

    done = start(
        master, commit_log, str(bare / "bin" / "python"),
        f"spark.archives={tmp_path / 'deps.tar.gz'}#deps",
        "spark.executorEnv.PYTHONPATH=deps", cwd=tmp_path,
    )  # fmt: skip

    assert f"rows {MESSAGES}\n" in done.stdout, done.stdout + done.stderr
    kernel = done.stdout.partition("kernel ")[2].strip()
    assert "/deps/cometmq/spark/columns." in kernel
    names = {path.name.partition(".")[0] for path in package_files() if path.suffix == ".so"}
    compiled = "columns" in names and os.environ.get("COMETMQ_BUILD") != "interpreted"
    assert kernel.endswith(".so" if compiled else ".py")


def test_a_whole_environment_works_if_the_driver_has_it_at_the_same_place(
    master: str, bare: Path, commit_log: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "env"
    shutil.copytree(bare, whole, symlinks=True)
    for path in package_files():
        copy = site_of(whole) / path.relative_to(SOURCES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(whole, ".")
    conf = f"spark.archives={tmp_path / 'env.tar.gz'}#env"

    done = start(master, commit_log, "./env/bin/python", conf, cwd=tmp_path)

    assert f"rows {MESSAGES}\n" in done.stdout, done.stdout + done.stderr
    kernel = done.stdout.partition("kernel ")[2].strip()
    assert "/env/lib/" in kernel
    assert not kernel.startswith(str(tmp_path))
