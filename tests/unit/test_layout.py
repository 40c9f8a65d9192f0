"""Layout: servers by feature, as the page says; unit tests by module; helpers by subject."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_type_hints

import pytest

from cometmq.broker.assembly import Features
from cometmq.broker.life import BrokerFeature
from cometmq.namesrv.assembly import FEATURES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "cometmq"
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
FOLDER_FILES_MAX = 3
CLIENT_FILES_MAX = 106
MODULE_LINES_MIN = 40
"""A shorter module belongs to the neighbour that uses it."""
PARAMETERS_MAX = 8
LONG_SIGNATURES_MAX = 23
"""Functions with more parameters than that. What belongs together is one value instead."""
GENERATED = SOURCES / "client" / "blocking" / "clients.py"
"""Its signatures are those of the asyncio classes, which count."""
HEAD = re.compile(r"^ *(?:async )?def \w+\((.*?)\)(?: ->[^\n]*)?:\n", re.DOTALL | re.MULTILINE)
"""The head of a function, with its parameters, and perhaps some heads that follow it."""
CHANGES = 15
CLIENT_CHANGES = 17
ASSEMBLIES = {
    "broker": {feature.__module__ for feature in get_type_hints(Features).values()},
    "namesrv": {build.__module__ for build in FEATURES},
}
"""The modules of the features that the assembly of each server lists."""

KINDS = (
    *(ast.Call, ast.Dict, ast.ImportFrom),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)

both_servers = pytest.mark.parametrize("server", ASSEMBLIES)


@functools.cache
def modules(server: str) -> list[tuple[Path, ast.Module]]:
    """All modules of a server, with their paths below its package."""
    paths = sorted((SOURCES / server).rglob("*.py"))
    return [(path.relative_to(SOURCES / server), ast.parse(path.read_text())) for path in paths]


@functools.cache
def nodes(server: str) -> list[tuple[Path, ast.AST]]:
    """All nodes of its modules that the rules below are about, with the paths of the modules."""
    return [
        (path, node)
        for path, tree in modules(server)
        for node in ast.walk(tree)
        if isinstance(node, KINDS)
    ]


@functools.cache
def features(server: str) -> dict[str, ast.Module]:
    """The module `feature.py` of each folder that has one."""
    return {path.parts[0]: tree for path, tree in modules(server) if path.name == "feature.py"}


@pytest.fixture(scope="module", autouse=True)
def _forgotten_at_the_end() -> Iterator[None]:
    """A million objects would slow down each collection of garbage in the tests that follow."""
    yield
    for cached in (modules, nodes, features):
        cached.cache_clear()


def called(node: ast.AST) -> str:
    """The name of what a call calls, without what stands before its last dot."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return getattr(function, "id", getattr(function, "attr", ""))


def origins(tree: ast.Module) -> dict[str, str]:
    """Each imported name, and the module that it comes from."""
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def routed(tree: ast.Module) -> list[str]:
    """The request codes that are keys of a dict of handlers, which a function makes."""
    functions = [
        node
        for outer in tree.body
        for node in ([outer] if not isinstance(outer, ast.ClassDef) else outer.body)
        if isinstance(node, ast.FunctionDef)
    ]
    return [
        key.attr
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Attribute) and ast.unparse(key.value) == "RequestCode"
    ]


@both_servers
def test_the_assembly_lists_every_feature_once(server: str) -> None:
    assert ASSEMBLIES[server] == {f"cometmq.{server}.{name}.feature" for name in features(server)}


def test_a_broker_has_one_object_of_every_feature() -> None:
    listed = list(get_type_hints(Features).values())
    classes = BrokerFeature.__subclasses__()
    found = [each for each in classes if each.__module__.startswith("cometmq.")]
    assert sorted(listed, key=str) == sorted(found, key=str)


@both_servers
def test_a_request_code_has_its_handler_in_one_feature(server: str) -> None:
    places = {str(path): routed(tree) for path, tree in modules(server)}
    codes = Counter(code for found in places.values() for code in found)

    assert {path for path, found in places.items() if found and "feature.py" not in path} == set()
    assert [code for code, count in codes.items() if count > 1] == []
    assert len(codes) > 20


@both_servers
def test_the_handlers_of_a_feature_are_in_its_folder(server: str) -> None:
    for name, tree in features(server).items():
        found = origins(tree)
        handlers = [called(node) for node in ast.walk(tree) if called(node).endswith("Handler")]
        assert {found[handler].split(".")[2] for handler in handlers} <= {name}, name


@both_servers
def test_jobs_are_declared_in_feature_folders(server: str) -> None:
    declaring = {path for path, node in nodes(server) if called(node) == "Job"}

    assert [path for path in declaring if path.parts[0] not in features(server)] == []
    assert declaring


def test_a_table_with_a_file_is_in_a_feature_folder() -> None:
    tables = [
        path.parts[0]
        for path, node in nodes("broker")
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).startswith("ConfigTable[") for base in node.bases)
    ]

    assert sorted(tables) == ["groups", "static_topics", "topics"]


def test_counters_get_their_names_in_one_module() -> None:
    names = re.compile(r"[A-Z]+(_[A-Z]+)+")
    places = {
        str(path)
        for path, node in nodes("broker")
        if called(node) == "add" and isinstance(node, ast.Call) and node.args
        for first in node.args[:1]
        if isinstance(first, ast.Constant) and names.fullmatch(str(first.value))
    }

    assert places == {"stats/counters.py"}


def test_lines_of_the_runtime_information_are_in_one_module() -> None:
    line = "putMessageTimesTotal"
    places = [
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if "spark" not in path.parts and line in path.read_text()
    ]

    assert places == ["broker/stats/runtime_info.py"]


def rows(heading: str = "Where a change goes") -> dict[str, list[str]]:
    """Each change of the table below a heading, and its files."""
    section = ARCHITECTURE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    table = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| A")]
    return {change.strip(): re.findall(r"`([\w/.]+)`", files) for change, files in table}


def test_the_files_of_each_change_exist_and_are_in_one_folder() -> None:
    assert len(rows()) == CHANGES
    for change, files in rows().items():
        assert files, change
        assert [name for name in files if not (SOURCES / name).is_file()] == [], change
        folders = [str(Path(name).parent) for name in files if "assembly.py" not in name]
        assert len(set(folders)) == 1, change
        assert len(folders) <= FOLDER_FILES_MAX, change


def test_the_files_of_each_change_of_the_client_exist_and_are_three_at_most() -> None:
    found = rows("Where a change of the client goes")

    assert len(found) == CLIENT_CHANGES
    for change, files in found.items():
        assert 1 <= len(files) <= 3, change
        assert [name for name in files if not (SOURCES / name).is_file()] == [], change


def test_the_client_has_few_files_and_no_tiny_ones() -> None:
    paths = list((SOURCES / "client").rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in paths}

    assert len(paths) <= CLIENT_FILES_MAX
    assert [p for p in paths if lines[p] < MODULE_LINES_MIN and p.name != "__init__.py"] == []


@pytest.mark.parametrize(
    "package", sorted(path.parent.name for path in SOURCES.glob("*/__init__.py"))
)
def test_modules_have_no_cycle_even_of_imports_for_types(package: str) -> None:
    names = {
        path: ".".join(["cometmq", package, *path.with_suffix("").parts]).removesuffix(".__init__")
        for path, _tree in modules(package)
    }
    graph: dict[str, set[str]] = {name: set() for name in names.values()}
    for path, node in nodes(package):
        if isinstance(node, ast.ImportFrom):
            graph[names[path]] |= graph.keys() & imported(node)

    TopologicalSorter(graph).prepare()  # raises CycleError


def imported(node: ast.ImportFrom) -> set[str]:
    """Return the modules that it imports from, those in ``if TYPE_CHECKING`` included."""
    return {
        name if is_module(name := f"{node.module}.{alias.name}") else str(node.module)
        for alias in node.names
    }


@functools.cache
def is_module(name: str) -> bool:
    """Whether it names a module or package of ours."""
    path = SOURCES.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


NOT_CALLED = {
    "ascend_resolver": "PyYAML calls it",
    "buffer_updated": "asyncio calls it",
    "descend_resolver": "PyYAML calls it",
    "encode_command": "deploy/healthcheck.py calls it",
    "get_buffer": "asyncio calls it",
    "ignore_aliases": "PyYAML calls it",
}
"""Functions and classes without a caller in the package, with the reason for each."""


def test_every_function_of_the_servers_has_a_caller() -> None:
    words = Counter(
        word for path in SOURCES.rglob("*.py") for word in re.findall(r"\w+", path.read_text())
    )
    defined = Counter(
        node.name
        for package in (
            *("model", "system", "protocol", "store", "remoting", "access"),
            *("broker", "namesrv", "filtersrv"),
        )
        for _path, node in nodes(package)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("__")
    )

    assert {name for name, count in defined.items() if words[name] <= count} == set(NOT_CALLED)


def listed(page: str) -> dict[str, set[str]]:
    """Return the names in the first columns of the page's tables of folders and modules."""
    table = r"^\| (?:Folder|Module) of `([\w/]+)/` \|.*\n\|[-|]+\n((?:\|.*\n)+)"
    found: dict[str, set[str]] = {}
    for package, rows in re.findall(table, page, re.MULTILINE):
        for row in rows.splitlines():
            found.setdefault(package, set()).update(re.findall(r"`(\w+)`", row.split("|")[1]))
    return found


def test_the_tables_of_the_page_have_every_module_and_folder_and_no_other() -> None:
    page = listed(ARCHITECTURE.read_text())
    store = {f"store/{path.parent.name}" for path in (SOURCES / "store").glob("*/__init__.py")}
    assert {"broker", "namesrv", "controller", "store"} | store <= page.keys()
    page.pop("client")  # its modules are public, and listed in the reference
    assert page == {
        package: {
            path.stem
            for path in (SOURCES / package).iterdir()
            if not path.name.startswith("_")
            and (path.suffix == ".py" or (path / "__init__.py").exists())
        }
        for package in page
    }


UNIT = ROOT / "tests" / "unit"
SOURCE_FOLDERS = (SOURCES, ROOT, ROOT / "tests")
"""Unit tests mirror one of these: the package, the programs of the project, or helpers."""
SEVERAL = {
    "client/test_log_calls.py": "reads every log call and error text of the client",
    "client/test_telemetry.py": "the modules of the package telemetry follow one message together",
    "client/test_wrong_arguments.py": "each public class and function refuses wrong types",
    "docs/test_guarantees.py": "reads one page and the tests that it names",
    "docs/test_pages.py": "reads every page, and the code that pages are generated from",
    "docs/test_spark_pages.py": "reads the pages about Spark, which need its packages",
    "faststream/test_conformance.py": "follows FastStream's base tests, for the whole broker class",
    "protocol/test_bodies.py": "one table has the classes of all modules of the package bodies",
    "protocol/test_headers.py": "one table has the classes of all modules of the package headers",
    "protocol/test_message_id_time.py": "sets time zones, so Windows leaves out the whole file",
    "spark/test_registration.py": "loads the modules by which Spark finds the formats",
    "store/test_confirm.py": "log, queues and index show what replicas have confirmed",
    "store/test_descriptors.py": "log, queues and index close what they opened",
    "store/test_synced_reads.py": "log, queues and index show what is on disk",
    "support/test_no_sleep.py": "reads every unit test",
    "support/test_warning_filters.py": "tests the warning filters of pyproject.toml",
    "system/test_platforms.py": "compares the modules of the package platforms",
    "test_changes.py": "makes changes in a copy of the whole package",
    "test_entry_points.py": "imports the modules that other programs load",
    "test_layout.py": "reads the names of all modules and tests",
}
"""Unit tests of several modules, or of none, with the reason: all others mirror one module."""
SEVERAL_MAX = 20
HELPERS_MAX = 16
"""More helpers in one folder are of more than one subject."""


def mirrored(test: Path) -> bool:
    """Whether a unit test has the path of a module; the module may begin with an underscore."""
    name = test.name.removeprefix("test_")
    places = [folder / test.relative_to(UNIT).parent for folder in SOURCE_FOLDERS]
    return any((place / f"{prefix}{name}").is_file() for place in places for prefix in ("", "_"))


def test_each_unit_test_has_the_path_of_its_module_or_a_reason() -> None:
    files = [path for path in UNIT.rglob("*.py") if path.name != "conftest.py"]
    others = {str(path.relative_to(UNIT)) for path in files if not mirrored(path)}

    assert [path for path in files if not path.name.startswith("test_")] == []
    assert others == SEVERAL.keys()
    assert len(SEVERAL) <= SEVERAL_MAX


def test_a_unit_test_in_another_folder_is_noticed() -> None:
    assert mirrored(UNIT / "broker/delay/test_delivery.py")
    assert mirrored(UNIT / "client/test_lifecycle.py")
    assert not mirrored(UNIT / "broker/test_delivery.py")
    assert not mirrored(UNIT / "broker/test_delay.py")


def test_helpers_of_tests_are_in_folders_by_subject() -> None:
    folders = Counter(
        path.parent.relative_to(ROOT / "tests")
        for path in (ROOT / "tests" / "support").rglob("*.py")
    )

    assert folders.pop(Path("support")) == 1, "only __init__.py lies in no folder"
    assert max(folders.values()) <= HELPERS_MAX


def long_signatures() -> Iterator[str]:
    """Each function with more parameters than `PARAMETERS_MAX`, without self, and their number.

    The parameters of a command are its options, and do not count.
    """
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text()
        heads = (head[1] for head in HEAD.finditer(text))  # parsing all files takes seconds
        if path == GENERATED or all(head.count(",") < PARAMETERS_MAX for head in heads):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                count = len([each for each in given if each.arg not in ("self", "cls")])
                if count > PARAMETERS_MAX and not is_command(node):
                    yield f"{path.relative_to(SOURCES)}:{node.lineno} {node.name}: {count}"


def is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether typer makes a command of a function."""
    return any(
        ast.unparse(each).partition("(")[0].endswith("command") for each in node.decorator_list
    )


def test_few_functions_have_many_parameters() -> None:
    found = list(long_signatures())
    assert len(found) <= LONG_SIGNATURES_MAX, "\n".join(
        [f"met {len(found)} functions, expected {LONG_SIGNATURES_MAX} at most:", *found]
    )
