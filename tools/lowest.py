"""Runs tests with the lowest versions of all packages that ``pyproject.toml`` promises.

``python tools/lowest.py`` installs them beside the lowest Python that is promised, in
``build/lowest``, compiles a copy of the sources there and runs the tests of `make quick`, those of
Spark without a JVM, one for each extra, and the programs of developers: checkers, drawings of
benchmarks, and a notebook with Spark if Java is here. A range whose lowest version cannot be
installed, or that another requirement excludes, is an error: then the range promises what nobody
can have.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.runner import pythons, spark_layer  # noqa: E402

FOLDER = ROOT / "build" / "lowest"
TREE = FOLDER / "project"
PYTHON = FOLDER / "venv" / "bin" / "python"
DEVELOPERS = {
    "check": (
        "ruff check .",
        "ruff format --check .",
        f"mypy --python-executable {sys.executable}",  # an older PySpark has other types
        "lint-imports",
        "pytest -q tests/integration/test_types.py",
        "pytest -q tests/integration/test_deployment.py -k a_linter",
    ),
    "docs": ("python -m sphinx --quiet -W --keep-going docs build/site",),
    "bench": ("python benchmarks/scale.py --plot", "python docs/images/record_demo.py"),
    "test-spark": ("pytest -q tests/spark/test_notebook.py",),
}
"""Commands that use the packages of each extra for developers. They may change the copy of the
sources."""
USED_BY = {
    "uvloop": ("tests/integration/test_remoting.py",),
    "tls": ("tests/unit/remoting/test_tls.py", "tests/client/test_tls_and_signing.py"),
    "compression": (
        "tests/unit/protocol/test_record.py",
        "tests/client/test_compression.py",
    ),
    "sql": ("tests/unit/client/idempotent/test_sqlalchemy.py",),
    "otel": ("tests/unit/client/test_telemetry.py",),
    "prometheus": ("tests/unit/client/test_telemetry.py",),
    "controller": ("tests/integration/test_controller.py",),
    "acl": ("tests/unit/access/plain/test_accounts.py",),
    "users": ("tests/unit/access/users/test_accounts.py",),
    "grpc": ("tests/unit/proxy", "tests/integration/test_proxy.py"),
    "otlp": ("tests/unit/metrics/test_push.py",),
    "taskiq": ("tests/integration/test_taskiq.py",),
    "celery": ("tests/integration/test_kombu.py", "tests/integration/test_celery.py"),
    "spark": ("tests/unit/spark",),
    "spark-provided": ("tests/unit/spark",),
    "faststream": ("tests/unit/faststream",),
    "console": ("tests/unit/console",),
    "oidc": ("tests/integration/test_console_openid.py",),
    "payloads": ("tests/unit/spark/payloads",),
    "build": ("tests/unit/test_build_ext.py",),
    "test": ("tests/unit",),
}
"""The tests that use the packages of each extra."""
UNPROMISED = ("examples",)
"""Extras without lowest versions: OpenTelemetry's exporter needs an SDK of its own version."""


def requirements() -> list[Requirement]:
    """The requirements of the core and of the extras, without those on extras of CometMQ."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    used = [line for extra in (*USED_BY, *DEVELOPERS) for line in extras[extra]]
    lines = [*project["dependencies"], *used]
    found = map(Requirement, lines)
    return [each for each in found if each.name != "cometmq"]


def lowest(requirement: Requirement) -> Version:
    """The lowest version that a requirement promises."""
    [version] = [each.version for each in requirement.specifier if each.operator == ">="]
    return Version(version)


def main() -> int:
    """Install, compile and test; the exit status is 0 only if all of it works."""
    oldest = pythons.supported()[0]
    python = pythons.find(oldest)
    if python is None:
        print(f"lowest: left out, there is no Python {oldest}: 'uv python install {oldest}'")
        return 1 if os.environ.get("CI") else 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    run(python, "-m", "venv", FOLDER / "venv")
    run(PYTHON, "-m", "pip", "install", "--quiet", "uv")
    uv = FOLDER / "venv" / "bin" / "uv"
    extras = [word for extra in (*USED_BY, *DEVELOPERS) for word in ("--extra", extra)]
    run(
        *(uv, "pip", "install", "--quiet", "--python", PYTHON, "--resolution", "lowest-direct"),
        *("--only-binary", ":all:", "--no-binary", "pyspark"),  # it has no wheel
        *("-r", ROOT / "pyproject.toml", *extras),
    )
    if wrong := mistakes(uv):
        print(*wrong, sep="\n")
        return 1
    copy_tree()
    run(uv, "pip", "install", "--quiet", "--python", PYTHON, "--no-deps", "--no-build-isolation",
        "--editable", TREE, COMETMQ_BUILD="interpreted")  # fmt: skip
    run(PYTHON, "build_ext.py", COMETMQ_BUILD="compiled")
    run(PYTHON, "tests/run.py", "--tier", "quick")
    beside = {path for used in USED_BY.values() for path in used if not in_quick(path)}
    run(PYTHON, "-m", "pytest", "-q", *sorted({*beside, *spark_layer.TESTS}))
    for extra, commands in DEVELOPERS.items():
        if extra != "test-spark" or spark_layer.has_java():
            for program, *words in map(str.split, commands):
                run(PYTHON.with_name(program), *words, COMETMQ_TIER="all")
    return 0


def in_quick(path: str) -> bool:
    """Whether `make quick` runs these tests."""
    return path.startswith("tests/unit") and not path.startswith(spark_layer.TESTS)


def mistakes(uv: Path) -> list[str]:
    """What was installed in place of a lowest version."""
    listed = subprocess.run(
        [uv, "pip", "list", "--quiet", "--python", PYTHON, "--format", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    installed = {row["name"]: Version(row["version"]) for row in json.loads(listed.stdout)}
    return [
        f"lowest: pyproject.toml promises {each}, the lowest version that can be installed with"
        f" the others is {found}: raise the range"
        for each in requirements()
        if (each.marker is None or each.marker.evaluate())
        and (found := installed[canonicalize_name(each.name)]) != lowest(each)
    ]


def copy_tree() -> None:
    """Copy what is tracked: compiled modules of another Cython must not lie in the sources."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)


def run(*command: object, **variables: str) -> None:
    """Run a command in the copy if there is one; end this program if it fails."""
    words = list(map(str, command))
    where = TREE if TREE.exists() else ROOT
    done = subprocess.run(words, cwd=where, env={**os.environ, **variables}, check=False)
    if done.returncode:
        sys.exit(f"lowest: {' '.join(words)} ended with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
