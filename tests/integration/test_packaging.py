"""The files of an installation: a source distribution, and the wheels that are built from it.

Tests that need a package index get packages through pip from the one that pip is set up for;
``PIP_NO_INDEX`` and ``PIP_FIND_LINKS`` name a folder instead. The others build with the tools of
this environment, and take modules that have not changed from the cache of `build_ext.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from trove_classifiers import classifiers

import build_ext
from support.runner import pythons

KEPT = ("src", "docs", "conf", "examples", "deploy")
FILES = (
    "pyproject.toml",
    "setup.py",
    "build_ext.py",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE",
    "NOTICE",
)
MADE = re.compile(r"PKG-INFO|setup\.cfg|src/cometmq\.egg-info(/.*)?")
"""What a source distribution holds besides the sources."""
SMOKE = build_ext.ROOT / "tests" / "support" / "runner" / "smoke.py"
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
BUILD_TIMEOUT_S = 1800.0
"""Ends a build that hangs; two quiet cores compile all modules in a minute."""
OTHERS = [
    version
    for version in pythons.supported()
    if version != f"{sys.version_info.major}.{sys.version_info.minor}"
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources without anything compiled."""
    copy = tmp_path_factory.mktemp("sources") / "tree"
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info", ".ipynb_checkpoints")
    for name in KEPT:
        shutil.copytree(build_ext.ROOT / name, copy / name, ignore=left_out)
    for name in FILES:
        shutil.copy(build_ext.ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    program = "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", program, str(folder), cwd=tree)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled wheel, built from the source distribution with the tools of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as opened:
        # Python 3.11.0 to 3.11.3 has no filters, 3.12 and 3.13 warn without one.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(folder)
    [sources] = folder.iterdir()
    return wheel_of(sources, folder, COMETMQ_BUILD="compiled")


@pytest.fixture(scope="module")
def release(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled wheel, built from the source distribution as a release is: pip gets the tools."""
    return build_wheel(Path(sys.executable), sdist, tmp_path_factory.mktemp("release"))


def attempt(
    *command: str | Path, cwd: Path, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command without the settings of the test run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COMETMQ_")}
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=kept | {"PYTHONPATH": ""} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def run(*command: str | Path, cwd: Path, timeout: float = 300, **environment: str) -> str:
    environment.setdefault("PYTHONDONTWRITEBYTECODE", "1")  # the tree is compared afterwards
    done = attempt(*command, cwd=cwd, timeout=timeout, **environment)
    assert done.returncode == 0, done.stdout
    return done.stdout


def building(folder: Path) -> list[str]:
    """The command that builds a wheel into a folder, as pip does with --no-build-isolation."""
    program = "from setuptools.build_meta import build_wheel; import sys; build_wheel(sys.argv[1])"
    return [sys.executable, "-c", program, str(folder)]


def wheel_of(sources: Path, folder: Path, **environment: str) -> Path:
    """Build a wheel with the tools of this environment."""
    run(*building(folder), cwd=sources, timeout=BUILD_TIMEOUT_S, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_wheel(python: Path, sdist: Path, folder: Path) -> Path:
    """Build a compiled wheel with nothing but what the sources say that they need."""
    command = (python, "-m", "pip", "wheel", "--no-deps", "-w", folder, sdist)
    run(*command, cwd=folder, timeout=BUILD_TIMEOUT_S, COMETMQ_BUILD="compiled")
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(python: Path, wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment where nothing can be compiled; return its Python."""
    run(python, "-m", "venv", folder, cwd=wheel.parent)
    inside = folder / "bin" / "python"
    command = (inside, "-m", "pip", "install", "--only-binary=:all:", wheel)
    run(*command, cwd=folder, PATH=str(folder / "bin"), **NO_COMPILER)
    return inside


def smoke(python: Path, build: str) -> str:
    """Send and receive with an installation, without any program that it did not bring along."""
    return run(python, "-P", SMOKE, build, cwd=python.parent, PATH=str(python.parent))


@pytest.fixture(scope="module")
def installed(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a bare environment that has the compiled wheel."""
    return install(Path(sys.executable), release, tmp_path_factory.mktemp("bare") / "environment")


@pytest.mark.needs("package index")
def test_a_compiled_wheel_serves_where_there_is_no_compiler(installed: Path) -> None:
    said = smoke(installed, "compiled")

    assert f"(compiled: {len(build_ext.COMPILED)} modules)" in said
    assert str(installed.parent.parent) in said


def test_a_compiled_wheel_holds_the_sources_and_every_compiled_module(
    tree: Path, wheel: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    compiled = {name.partition(".")[0].replace("/", ".") for name in names if name.endswith(".so")}
    assert compiled == {*build_ext.COMPILED, build_ext.SHARED}
    sources = {str(path.relative_to(tree / "src")) for path in (tree / "src").rglob("*.p[yx]*")}
    assert sources <= names
    assert not [name for name in names if name.endswith(".c")]


def test_an_index_accepts_the_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        raw = archive.read(name)
        licences = {Path(name).name for name in archive.namelist() if "/licenses/" in name}

    metadata = Metadata.from_email(raw, validate=True)
    assert set(metadata.classifiers or ()) <= classifiers
    assert metadata.license_expression == "Apache-2.0"
    assert licences == {"LICENSE", "NOTICE"}
    assert metadata.description_content_type == "text/markdown"
    assert {"Source", "Issues", "Changelog", "Documentation"} <= set(metadata.project_urls or {})


def test_the_description_links_to_pages_that_an_index_does_not_have_by_full_address(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = message_from_bytes(archive.read(name)).get_payload()

    links = re.findall(r"\]\(([^)\s]+)\)", str(text))
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.needs("package index")
def test_a_shell_completes_the_commands_of_an_installation(installed: Path) -> None:
    program = """
        eval "$(_COMETMQ_COMPLETE=source_bash cometmq)"
        COMP_WORDS=(cometmq st) COMP_CWORD=1
        _cometmq_completion cometmq
        echo "${COMPREPLY[@]}"
    """
    said = run(shutil.which("bash") or "bash", "-c", program, cwd=installed.parent,
               PATH=f"{installed.parent}:{os.defpath}")  # fmt: skip

    assert said.split() == ["standalone", "store"]


def test_a_source_distribution_holds_what_a_build_needs_and_no_more(
    tree: Path, sdist: Path
) -> None:
    with tarfile.open(sdist) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}

    made = ("build/", "src/cometmq.egg-info/")
    sources = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    sources = {name for name in sources if not name.startswith(made)}
    assert {name for name in names if not MADE.fullmatch(name)} == sources
    assert not [name for name in sources if name.endswith((".so", ".c", ".pyc"))]


def test_a_wheel_without_a_compiler_is_whole_and_runs_interpreted(
    tree: Path, tmp_path: Path
) -> None:
    said = run(*building(tmp_path), cwd=tree, **NO_COMPILER)

    assert "the hot modules stay interpreted" in said
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    sources = {str(path.relative_to(tree / "src")) for path in (tree / "src").rglob("*.p[yx]*")}
    assert sources <= names
    assert "cometmq/py.typed" in names
    assert not [name for name in names if name.endswith((".so", ".c"))]
    command = (sys.executable, "-m", "cometmq", "version")
    assert "interpreted" in run(*command, cwd=tmp_path, PYTHONPATH=str(tmp_path / "installed"))


def release_fails(tree: Path, folder: Path, **environment: str) -> str:
    """Try to build a compiled wheel in vain; return what the build printed."""
    asked = environment | {"COMETMQ_BUILD": "compiled"}
    done = attempt(*building(folder), cwd=tree, timeout=BUILD_TIMEOUT_S, **asked)
    assert done.returncode != 0, done.stdout
    assert not list(folder.glob("*.whl"))
    return done.stdout


def test_a_release_build_fails_without_a_compiler(tree: Path, tmp_path: Path) -> None:
    assert "C compiler is missing" in release_fails(tree, tmp_path, **NO_COMPILER)


def test_a_release_build_fails_where_one_module_does_not_compile(
    tree: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy)
    types = copy / "src" / "cometmq" / "spark" / "columns.pxd"  # no other module includes it
    types.write_text(types.read_text() + 'cdef extern from "no_such_header.h":\n    pass\n')

    assert "no_such_header.h: No such file" in release_fails(copy, tmp_path)


def test_an_unknown_build_is_refused(tree: Path, tmp_path: Path) -> None:
    done = attempt(*building(tmp_path), cwd=tree, COMETMQ_BUILD="compile")

    assert done.returncode != 0
    assert "COMETMQ_BUILD is 'compile'; it must be compiled, interpreted or empty" in done.stdout


@pytest.mark.long
@pytest.mark.needs("package index")
@pytest.mark.parametrize("version", OTHERS)
def test_a_compiled_wheel_serves_on_every_supported_python(
    version: str, sdist: Path, tmp_path: Path
) -> None:
    python = pythons.find(version)
    if python is None:
        pytest.skip(f"no Python {version} is installed")
    wheel = build_wheel(python, sdist, tmp_path)
    said = smoke(install(python, wheel, tmp_path / "environment"), "compiled")

    assert f"(compiled: {len(build_ext.COMPILED)} modules), Python {version}." in said
