"""The list of compiled modules agrees with the files."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import build_ext
from support.runner import build

SOURCES = build_ext.ROOT / "src"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts)


def test_every_module_with_a_pxd_is_on_the_list() -> None:
    with_pxd = {module_name(path) for path in SOURCES.rglob("*.pxd") if path.stem != "__init__"}

    assert with_pxd == set(build_ext.COMPILED)


def test_every_module_on_the_list_says_why() -> None:
    unexplained = [name for name, why in build_ext.COMPILED.items() if not why.strip()]

    assert unexplained == []


def test_the_build_under_test_is_the_one_asked_for() -> None:
    assert build.mismatch() is None


def test_the_package_is_imported_from_a_zip_whichever_build_is_asked_for(tmp_path: Path) -> None:
    """As Spark's ``--py-files`` brings it to executors."""
    with zipfile.ZipFile(tmp_path / "cometmq.zip", "w") as archive:
        for path in (SOURCES / "cometmq" / "model").glob("*.py"):
            archive.write(path, path.relative_to(SOURCES))
        archive.write(SOURCES / "cometmq" / "__init__.py", "cometmq/__init__.py")
    program = "from cometmq.model import topic; print(topic.__file__)"
    for asked in ("interpreted", ""):
        environment = os.environ | {"COMETMQ_BUILD": asked}
        environment["PYTHONPATH"] = str(tmp_path / "cometmq.zip")
        said = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert said.stdout.strip() == str(tmp_path / "cometmq.zip" / "cometmq/model/topic.py")


def test_a_module_depends_on_every_declaration_that_cython_reads_for_it() -> None:
    from Cython.Build.Dependencies import create_dependency_tree
    from Cython.Compiler.Main import Context
    from Cython.Compiler.Options import CompilationOptions, default_options

    options = CompilationOptions(default_options, include_path=[str(SOURCES)])
    tree = create_dependency_tree(Context.from_options(options), quiet=True)
    for name in build_ext.COMPILED:
        source = SOURCES.joinpath(*name.split(".")).with_suffix(".py")
        read = map(Path, tree.all_dependencies(str(source)))
        ours = {module_name(path) for path in read if path.is_relative_to(SOURCES)}
        assert ours <= build_ext.declarations_of(name)


def test_every_declared_import_of_a_hot_module_is_found() -> None:
    assert "cometmq.protocol.octets" in build_ext.declarations_of("cometmq.store.appender")
    assert "cometmq.store.log.record_layout" in build_ext.declarations_of("cometmq.store.appender")


LOCALS = re.compile(r"@cython\.locals\(([^()]*(?:\([^()]*\)[^()]*)*)\)")


def declared_locals(declarations: str) -> Iterator[tuple[str, str]]:
    """Yield function and name of each local variable that a file declares."""
    for found in LOCALS.finditer(declarations):
        function = re.search(r"(\w+)\(", LOCALS.sub("", declarations[found.end() :]))
        assert function is not None
        for name in re.findall(r"(\w+)\s*=", found[1]):
            yield function[1], name


def names_in(source: str) -> dict[str, set[str]]:
    """Return the names that are bound or read in each function of a module, by its name."""
    names: dict[str, set[str]] = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            found = names.setdefault(function.name, set())
            for node in ast.walk(function):
                match node:
                    case ast.Name(name) | ast.arg(name):
                        found.add(name)
    return names


@pytest.mark.parametrize(
    "path", sorted(SOURCES.rglob("*.pxd")), ids=lambda path: module_name(path).rpartition(".")[2]
)
def test_every_declared_local_is_one_of_its_function(path: Path) -> None:
    """Cython ignores the others: one above another function leaves slow objects in its own."""
    names = names_in(path.with_suffix(".py").read_text())
    unknown = [
        f"{function}: {name}"
        for function, name in declared_locals(path.read_text())
        if name not in names[function]
    ]

    assert unknown == []


def test_a_cached_file_comes_back_as_it_was_put(tmp_path: Path) -> None:
    cache = build_ext.Cache(tmp_path)
    cache.put("a", b"library")

    assert cache.get("a") == b"library"
    assert cache.get("b") is None


@pytest.mark.parametrize("kept_bytes", [0, 5, 32, 33])
def test_a_cached_file_that_was_cut_off_counts_as_missing(tmp_path: Path, kept_bytes: int) -> None:
    cache = build_ext.Cache(tmp_path)
    cache.put("a", b"library")
    path = tmp_path / "a"
    path.write_bytes(path.read_bytes()[:kept_bytes])

    assert cache.get("a") is None


def test_a_cached_file_with_another_byte_counts_as_missing(tmp_path: Path) -> None:
    cache = build_ext.Cache(tmp_path)
    cache.put("a", b"library")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1] + b"!")

    assert cache.get("a") is None


def test_the_cache_removes_the_files_that_were_not_used_for_the_longest_time(
    tmp_path: Path,
) -> None:
    cache = build_ext.Cache(tmp_path, bytes_max=3 * 132)
    for age, key in enumerate("abc"):
        cache.put(key, key.encode() * 100)
        os.utime(tmp_path / key, (1_000_000 + age, 1_000_000 + age))
    cache.get("a")

    cache.put("d", b"d" * 100)

    assert {path.name for path in tmp_path.iterdir()} == {"a", "c", "d"}


def test_a_cache_that_cannot_be_written_caches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    cache = build_ext.Cache(tmp_path / "file" / "folder")
    cache.put("a", b"library")

    assert cache.get("a") is None
    assert "the compiled file is not cached" in capsys.readouterr().err


def test_a_cache_that_can_only_be_read_gives_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = build_ext.Cache(tmp_path)
    cache.put("a", b"library")

    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "utime", refuse)

    assert cache.get("a") == b"library"


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_cache_that_others_can_write_to_is_not_read(tmp_path: Path, mode: int) -> None:
    cache = build_ext.Cache(tmp_path / "cache")
    cache.put("a", b"library")
    assert cache.get("a") == b"library"
    (tmp_path / "cache").chmod(mode)

    assert cache.get("a") is None


def test_the_cache_is_kept_small_beside_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "0-folder").mkdir()
    cache = build_ext.Cache(tmp_path, bytes_max=132)
    cache.put("a", b"a" * 100)
    os.utime(tmp_path / "a", (1_000_000, 1_000_000))
    cache.put("b", b"b" * 100)

    assert {path.name for path in tmp_path.iterdir()} == {"0-folder", "b"}


def test_a_user_without_a_home_caches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    cache = build_ext.Cache()
    cache.put("a", b"library")

    assert cache.get("a") is None


def test_a_cython_that_fails_is_a_build_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(build_ext.BuildError, match="Cython ended with 1"):
        build_ext._translate([build_ext.SHARED], tmp_path)


def test_a_file_that_cannot_be_installed_leaves_no_module_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from setuptools import Distribution

    first, second = tuple(build_ext.COMPILED)[:2]
    command = build_ext.build_command()(Distribution({"name": "cometmq"}))
    command.build_lib = str(tmp_path)
    command.ensure_finalized()
    monkeypatch.setattr(build_ext, "_libraries", lambda _: ({first: b"1", second: b"2"}, 0))
    blocked = Path(command.get_ext_fullpath(second))
    blocked.mkdir(parents=True)

    with pytest.raises(IsADirectoryError):
        command.build_extensions()

    assert not Path(command.get_ext_fullpath(first)).exists()


def test_builds_that_share_a_cache_never_read_a_part_of_a_file(tmp_path: Path) -> None:
    contents = {key: key.encode() * 5_000 for key in "abcdef"}

    def build_often(seed: int) -> None:
        chosen = random.Random(seed)
        cache = build_ext.Cache(tmp_path, bytes_max=3 * 5_100)
        for _ in range(50):
            key = chosen.choice("abcdef")
            assert cache.get(key) in (None, contents[key])
            cache.put(key, contents[key])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build_often, range(4)))

    kept = [path for path in tmp_path.iterdir() if path.name in contents]
    assert sum(path.stat().st_size for path in kept) <= 3 * 5_100 + 4 * 5_032


def test_a_build_says_how_far_it_is_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_ext, "PROGRESS_S", 0.001)
    made, looked, shown = ["store.a"], 0, threading.Event()

    def done() -> list[str]:
        nonlocal looked
        looked += 1
        if looked > 1:  # what the first look found is printed
            shown.set()
        return made

    with build_ext.progress("compiles C", {"store.a": 3, "store.b": 1}, done):
        assert shown.wait(60)

    said = capsys.readouterr().out
    assert re.fullmatch(r"build: compiles C: module 1 of 2, about 0 s to go\n", said)
