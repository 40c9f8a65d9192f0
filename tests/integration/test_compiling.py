"""Compiling in place: what is compiled again, what the cache gives, and what a failure leaves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

import build_ext

HOT = ("cometmq.protocol.checksum", "cometmq.protocol.hashing")
PROGRAM = f"""
import sys, build_ext
build_ext.COMPILED = dict.fromkeys({HOT!r}, "two are enough here")
build_ext.FLAGS = ("-O0", *build_ext.FLAGS[1:])  # a third of the time of -O2
sys.exit(build_ext.main())
"""
LIMIT_S = 600.0
_COMPILED_FILES = shutil.ignore_patterns("__pycache__")


class Tree:
    """A clone of the sources with a short list of hot modules."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self.cache = cache
        package = root / "src" / "cometmq"
        for name in ("__init__.py", *(f"{each.removeprefix('cometmq.')}" for each in HOT)):
            for path in [Path(name)] if name.endswith(".py") else _files_of(name):
                (package / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(build_ext.ROOT / "src" / "cometmq" / path, package / path)
        (package / "protocol" / "__init__.py").touch()
        systems = Path("src", "cometmq", "system", "platforms")  # what the build itself imports
        shutil.copytree(build_ext.ROOT / systems, root / systems, ignore=_COMPILED_FILES)
        (root / systems).with_name("__init__.py").touch()
        shutil.copy(build_ext.ROOT / "build_ext.py", root)

    def build(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("COMETMQ_")}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=self.root,
            env={**kept, "PYTHONPATH": "", "XDG_CACHE_HOME": str(self.cache), **environment},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def build_well(self, *words: str, **environment: str) -> str:
        done = self.build(*words, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def libraries(self) -> set[str]:
        return {path.name.partition(".")[0] for path in (self.root / "src").rglob("*.so")}

    def source(self, name: str) -> Path:
        return self.root.joinpath("src", *name.split(".")).with_suffix(".py")


def _files_of(module: str) -> list[Path]:
    path = Path(*module.split("."))
    return [path.with_suffix(".py"), path.with_suffix(".pxd")]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree that was compiled with an empty cache."""
    if shutil.which(os.environ.get("CC", "cc")) is None and not os.environ.get("CI"):
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("compiling")
    tree = Tree(folder / "first", folder / "cache")
    assert cached_files(tree.build_well(COMETMQ_BUILD="compiled")) == 0
    return tree


@pytest.fixture
def clone(compiled: Tree, tmp_path: Path) -> Tree:
    """A second clone with a copy of the first one's cache."""
    shutil.copytree(compiled.cache, tmp_path / "cache")
    return Tree(tmp_path / "clone", tmp_path / "cache")


@pytest.fixture
def broken_compiler(tmp_path: Path) -> str:
    """A C compiler that says its version and compiles nothing."""
    script = tmp_path / "broken-cc"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "broken 1.0" && exit 0\nexit 1\n')
    script.chmod(0o755)
    return str(script)


def cached_files(said: str) -> int:
    found = re.search(r"2 of 2 hot modules are compiled \((\d+) from the cache", said)
    assert found, said
    return int(found[1])


def test_the_modules_and_the_helpers_they_share_are_compiled(compiled: Tree) -> None:
    assert compiled.libraries == {"_cython", "checksum", "hashing"}
    program = "from cometmq.protocol import checksum, hashing; print(checksum.__file__)"
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(compiled.root / "src")},
        capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert said.stdout.strip().endswith(build_ext.SUFFIX)


def test_nothing_is_done_where_only_the_times_of_files_changed(compiled: Tree) -> None:
    for path in compiled.root.rglob("*.p[yx]*"):
        path.touch()

    assert "nothing to do" in compiled.build_well()


def test_a_start_finds_the_bytecode_of_each_source_even_where_python_writes_none(
    clone: Tree,
) -> None:
    clone.build_well(COMETMQ_BUILD="interpreted", PYTHONDONTWRITEBYTECODE="1")

    sources = sorted((clone.root / "src").rglob("*.py"))
    assert sources
    missing = [path for path in sources if not Path(cache_from_source(str(path))).exists()]
    assert missing == []


def test_a_second_clone_takes_everything_from_the_cache(clone: Tree) -> None:
    assert cached_files(clone.build_well()) == 3


def test_only_what_changed_or_is_damaged_in_the_cache_is_compiled_again(
    compiled: Tree, clone: Tree
) -> None:
    damaged, changed = HOT
    [library] = compiled.source(damaged).parent.glob("checksum.*.so")
    [entry] = [
        path
        for path in clone.cache.joinpath("cometmq", "compiled").iterdir()
        if path.read_bytes().endswith(library.read_bytes())
    ]
    entry.write_bytes(entry.read_bytes()[:-100])
    with clone.source(changed).open("a") as source:
        source.write('\n\ndef added() -> str:\n    """Be new."""\n    return "new"\n')

    assert cached_files(clone.build_well()) == 1  # Cython's helpers
    assert "nothing to do" in clone.build_well()
    assert clone.libraries == {"_cython", "checksum", "hashing"}
    assert cached_files(Tree(clone.root.with_name("third"), clone.cache).build_well()) == 3


def test_a_compiled_file_of_an_older_source_is_not_used(clone: Tree) -> None:
    clone.build_well()
    clone.build_well("--prune")
    assert clone.libraries == {"_cython", "checksum", "hashing"}
    with clone.source(HOT[1]).open("a") as source:
        source.write("# changed\n")

    clone.build_well("--prune")

    assert clone.libraries == set()


def test_a_failing_compiler_leaves_no_module_compiled(clone: Tree, broken_compiler: str) -> None:
    done = clone.build(CC=broken_compiler)

    assert done.returncode == 0, done.stderr
    assert "0 of 2 hot modules are compiled" in done.stdout
    assert "stay interpreted" in done.stderr
    assert clone.libraries == set()


def test_a_machine_without_headers_translates_nothing(clone: Tree, tmp_path: Path) -> None:
    """A Cython that fails would be met first."""
    compiler = tmp_path / "cc-without-headers"
    compiler.write_text('#!/bin/sh\nexec cc -nostdinc "$@"\n')
    compiler.chmod(0o755)
    clone.source(HOT[1]).write_text("this is no Python")

    done = clone.build(CC=str(compiler))

    assert done.returncode == 0, done.stderr
    assert "0 of 2 hot modules are compiled" in done.stdout
    assert "Python.h cannot be compiled; expected the headers of Python" in done.stderr


def test_a_module_that_cython_cannot_translate_fails_the_build(clone: Tree) -> None:
    """The module is wrong, not the machine: tests of the other build would pass without a word."""
    clone.source(HOT[1]).write_text("this is no Python")

    done = clone.build()

    assert done.returncode == 1, done.stdout
    assert "Cython cannot translate a hot module" in done.stderr
    assert clone.libraries == set()


@pytest.mark.parametrize("compiler", ["/bin/false", "broken"])
def test_a_compiled_build_that_fails_is_an_error(
    clone: Tree, broken_compiler: str, compiler: str
) -> None:
    done = clone.build(
        CC=broken_compiler if compiler == "broken" else compiler, COMETMQ_BUILD="compiled"
    )

    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith("build: ")
    assert clone.libraries == set()


def test_an_interpreted_build_removes_compiled_files(clone: Tree) -> None:
    clone.build_well()

    assert "0 of 2" in clone.build_well(COMETMQ_BUILD="interpreted")
    assert clone.libraries == set()


def test_another_build_than_the_known_ones_is_an_error(clone: Tree) -> None:
    done = clone.build(COMETMQ_BUILD="fast")

    assert done.returncode != 0
    assert "COMETMQ_BUILD is 'fast'; it must be compiled, interpreted or empty" in done.stderr
