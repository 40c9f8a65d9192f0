"""Finds the test files that a change touches, from the imports of sources and tests.

A changed module touches the tests that import it or a module that imports it directly, and the
tests whose name has a word of its path: `broker/delay/delivery.py` touches `test_delay_kills.py`,
which runs it in a server process and does not import it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("docs/", "examples/", "benchmarks/results/", "README.md", "CONTRIBUTING.md")
PAGE_TESTS = ("tests/unit/docs/test_pages.py", "tests/unit/docs/test_guarantees.py")
SERVICES = {"examples/orders/": "tests/integration/test_orders.py"}
"""Examples with tests of their own."""
PROJECT_TESTS = (
    "tests/unit/test_layout.py",
    "tests/unit/test_build_ext.py",
    "tests/unit/support",
    "tests/unit/tools",
)
WORD_LETTERS_MIN = 4
COMMON_WORDS = {"cometmq", "broker", "client", "store", "system", "model", "protocol", "config"}
"""Words in the names of many tests: they would select most of the suite."""


def changed_files(since: str) -> list[str]:
    """The files that differ from a commit, and untracked files."""
    return [*_git("diff", "--name-only", since), *_git("ls-files", "-o", "--exclude-standard")]


def affected_tests(changed: Iterable[str]) -> list[str]:
    """The test files, or folders of them, that a change of these files touches."""
    found: set[str] = set()
    modules: set[str] = set()
    for path in changed:
        if path.startswith("tests/") and Path(path).name.startswith("test_"):
            found.add(path)
        elif path.endswith(".json") or path.startswith(PAGES):
            found.update(PAGE_TESTS)
            found.update(test for folder, test in SERVICES.items() if path.startswith(folder))
        elif path.startswith(("src/", "tests/", "tools/")) and path.endswith((".py", ".pxd")):
            modules.add(_module_of(path.removesuffix(".pxd").removesuffix(".py")))
            found.update(_tests_named_after(path))
        else:
            found.update(PROJECT_TESTS)
    importers = _importers()
    touched = modules.union(*(importers[module] for module in modules))
    found.update(path for path in _tests() if touched & _imports_of_test(path))
    return sorted(path for path in found if (ROOT / path).exists())


def _tests_named_after(path: str) -> Iterator[str]:
    words = {word.removesuffix("s") for word in re.split(r"[/_.]", path)[1:-1]} - COMMON_WORDS
    words = {word for word in words if len(word) >= WORD_LETTERS_MIN}
    for test in _tests():
        if words & {word.removesuffix("s") for word in Path(test).stem.split("_")}:
            yield test


@cache
def _tests() -> tuple[str, ...]:
    files = (ROOT / "tests").rglob("test_*.py")
    own = (path.relative_to(ROOT).as_posix() for path in files)
    return tuple(sorted(path for path in own if not path.startswith("tests/conformance/")))


@cache
def _importers() -> defaultdict[str, set[str]]:
    """By module of CometMQ, the modules that import it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "src").rglob("*.py"):
        module = _module_of(path.relative_to(ROOT).with_suffix("").as_posix())
        for name in _imports(path):
            found[name].add(module)
    return found


@cache
def _imports_of_test(path: str) -> frozenset[str]:
    """The modules that a test, its helpers and the conftests above it import."""
    waiting = [ROOT / path, *(folder / "conftest.py" for folder in (ROOT / path).parents)]
    seen, found = set[Path](), set[str]()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.exists() or ROOT not in file.parents:
            continue
        seen.add(file)
        names = _imports(file)
        found |= names
        for name in names:
            parts = Path(*name.split("."))
            waiting += [
                (ROOT / base / parts).with_suffix(".py")
                for base in ("tests", "tests/interop", ".")
                if parts.parts[0] != "cometmq"
            ]
    return frozenset(found)


@cache
def _imports(path: Path) -> frozenset[str]:
    """The modules whose names a file imports; a name that a package passes on counts as its own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(_source_of(node.module, alias.name) for alias in node.names)
    return frozenset(found)


@cache
def _source_of(module: str, name: str) -> str:
    """The module that defines a name which another one passes on."""
    folder = ROOT / "src" / Path(*module.split("."))
    if not module.startswith("cometmq") or (folder / f"{name}.py").exists():
        return f"{module}.{name}"
    package = folder / "__init__.py"
    nodes = ast.walk(ast.parse(package.read_text())) if package.exists() else ()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
            return _source_of(node.module, name) if node.module not in (None, module) else module
    return f"{module}.{name}" if (folder / name).is_dir() else module


def _module_of(path: str) -> str:
    parts = path.removeprefix("src/").removeprefix("tests/").removesuffix("/__init__").split("/")
    return ".".join(parts)


def forget() -> None:
    """Read all files anew."""
    for each in (_tests, _importers, _imports_of_test, _imports, _source_of):
        each.cache_clear()


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
