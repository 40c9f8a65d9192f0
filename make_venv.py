"""Makes ``.venv`` in layers, each when it is first needed: core, test, and others on top.

``python make_venv.py LAYER`` makes a layer and those below it. A layer is made again when its part
of ``pyproject.toml`` has changed. A layer never changes a package of the layers below it, so tests
may run while the next layer is installed. A ``.venv`` of another Python or another place is made
anew. The layer demo stands on core alone: what it runs needs no tool of a developer.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036, an older Python gets a clear message here
    sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")

import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from cometmq.system.platforms import SYSTEM

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
SECONDS = {"core": 5, "test": 20, "demo": 40, "spark": 60, "docs": 10}
"""How long each layer takes with a fast network and an empty cache."""
PROGRESS_S = 5.0
"""Seconds between two lines about the progress of an installation."""
LAYERS = {
    "core": (),
    "test": ("build", "check", "test", "examples"),
    "demo": ("spark",),
    "spark": ("test-spark",),
    "docs": ("docs",),
}
"""The layers, each with its extras in ``pyproject.toml``."""
BASE = ("core", "test")
"""The layers below the others, from bottom to top."""
BELOW = dict.fromkeys(LAYERS, BASE) | {"core": (), "test": ("core",), "demo": ("core",)}
"""The layers that are made before each layer."""
_OWN_EXTRAS = re.compile(r"cometmq\[([\w,-]+)\]")
_PIP_OLDEST = (22, 3)
"""The first pip with the option ``--python``."""


def main() -> int:
    """Make the layer named on the command line, and those below it."""
    if len(sys.argv) != 2 or sys.argv[1] not in LAYERS:
        sys.exit(f"make_venv.py needs one of {', '.join(LAYERS)}, not {sys.argv[1:]}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    layers = (*BELOW[sys.argv[1]], sys.argv[1])
    if all(_is_current(layer, project) for layer in layers):
        return 0
    VENV.mkdir(exist_ok=True)
    with (VENV / ".lock").open("w") as lock:
        SYSTEM.lock(lock.fileno(), wait=True)
        _clear_if_unusable()
        for layer in layers:
            if not _is_current(layer, project):
                _make(layer, project)
    return 0


def _make(layer: str, project: dict[str, Any]) -> None:
    started = time.monotonic()
    requirements = _requirements(layer, project)
    print(
        f"setup: installs {len(requirements)} requirements for the {layer} layer into .venv,"
        f" about {SECONDS[layer]} s with a fast network",
        flush=True,
    )
    pip = _pip()
    _marker(layer).unlink(missing_ok=True)
    if layer == "core":
        # Without a pip of its own, ``pip`` in the activated environment is the system's.
        _run([*pip, "install", "pip", *requirements])
    elif layer == "test":
        _run([*pip, "install", *requirements])
        _run([*pip, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
    else:
        below = [each for name in BASE for each in _requirements(name, project)]
        constraints = VENV / ".constraints"
        constraints.write_text("\n".join(_pins(below)))
        _run([*pip, "install", "--constraint", str(constraints), *requirements])
    _marker(layer).write_text(_digest(layer, project))
    print(f"setup: the {layer} layer took {time.monotonic() - started:.0f} s", flush=True)


def _clear_if_unusable() -> None:
    """Empty ``.venv`` if it is of another Python or place, incomplete, or its Python is gone.

    The programs in a copied or moved ``.venv`` start with the path of the first one.

    The lock stays, because other processes wait for it. ``pyvenv.cfg`` goes first and ``bin`` last:
    if the clearing is interrupted, the next run finds it incomplete and clears it.
    """
    config = VENV / "pyvenv.cfg"
    text = config.read_text() if config.exists() else ""
    found = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", text, re.MULTILINE)
    made = re.search(r"^command\s*=.* -m venv .*?(/.*|[A-Za-z]:\\.*)$", text, re.MULTILINE)
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    if found is not None and found[1] != this:
        why = f"has Python {found[1]}, this is {this}"
    elif made is not None and made[1] != str(VENV):
        why = f"was made in {Path(made[1]).parent}"
    elif _python().parent.exists() and (found is None or not _python().exists()):
        why = "is incomplete"
    else:
        return
    print(f"setup: .venv {why}: makes it anew", flush=True)
    config.unlink(missing_ok=True)
    for path in sorted(VENV.iterdir(), key=lambda each: each == _python().parent):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def _pins(requirements: list[str]) -> list[str]:
    """The installed versions of these requirements and of all that they need.

    Packages that only an older layer above needed are not among them: its requirements may have
    changed. Environment markers are not evaluated: what is not installed is passed over.
    """
    folder = sysconfig.get_path("purelib", "venv", vars={"base": str(VENV)})
    found = [each for each in distributions(path=[folder]) if each.metadata["Name"]]
    installed = {_name(each.name): each for each in found}
    pins: dict[str, str] = {}
    waiting, seen = [_parsed(each) for each in requirements], set[tuple[str, str]]()
    while waiting:
        name, extras = waiting.pop()
        if (package := installed.get(name)) is None:
            continue
        pins[name] = f"{name}=={package.version}"
        for extra in {"", *extras} - {extra for of, extra in seen if of == name}:
            seen.add((name, extra))
            waiting += _needs(package, extra)
    return sorted(pins.values())


def _needs(package: Distribution, extra: str) -> Iterator[tuple[str, set[str]]]:
    for line in package.requires or ():
        requirement, _, marker = line.partition(";")
        asked = re.findall(r"""extra\s*==\s*["']([^"']+)""", marker)
        if extra in (map(_name, asked) if asked else ("",)):
            yield _parsed(requirement)


def _parsed(requirement: str) -> tuple[str, set[str]]:
    """The name of a requirement and its extras."""
    found = re.match(r"\s*([\w.-]+)\s*(?:\[([^]]*)\])?", requirement)
    if found is None:
        sys.exit(f"setup: {requirement!r} is no requirement: it begins with no name")
    return _name(found[1]), {_name(each.strip()) for each in (found[2] or "").split(",") if each}


def _name(name: str) -> str:
    """A name of a package or an extra as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip() -> list[str]:
    """The command of a pip that installs into ``.venv``; makes ``.venv`` if it is missing.

    If this Python's pip is new enough, it is used: ``venv`` takes longer to unpack its own than
    pip takes to install the core layer.
    """
    python = _python()
    options = ["--disable-pip-version-check", "--no-input"]
    own = [str(python), "-m", "pip", *options]
    if _version_of(own) is not None:
        return own
    ours = [sys.executable, "-m", "pip", "--python", str(python), *options]
    can = (_version_of([sys.executable, "-m", "pip"]) or (0,)) >= _PIP_OLDEST
    if not python.exists() or not can:
        without = ["--without-pip"] if can else []
        _run([sys.executable, "-m", "venv", *without, str(VENV)])
    return ours if can else own


def _version_of(pip: list[str]) -> tuple[int, ...] | None:
    try:
        done = subprocess.run([*pip, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return tuple(map(int, re.findall(r"\d+", done.stdout.split()[1])[:2]))


def _requirements(layer: str, project: dict[str, Any]) -> list[str]:
    """The requirements of a layer; extras of CometMQ are replaced by their requirements."""
    if layer == "core":
        return list(project["dependencies"])
    return list(dict.fromkeys(_expanded(LAYERS[layer], project["optional-dependencies"])))


def _expanded(extras: tuple[str, ...], known: dict[str, list[str]]) -> Iterator[str]:
    for requirement in (each for extra in extras for each in known[extra]):
        if own := _OWN_EXTRAS.fullmatch(requirement):
            yield from _expanded(tuple(own[1].split(",")), known)
        else:
            yield requirement


def _digest(layer: str, project: dict[str, Any]) -> str:
    parts: list[Any] = [sys.version_info[:2], _requirements(layer, project)]
    if layer == "test":  # its editable install contains our metadata and our path
        parts += [str(ROOT), *(project[key] for key in ("dependencies", "scripts", "entry-points"))]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _python() -> Path:
    programs = sysconfig.get_path("scripts", "venv", vars={"base": str(VENV)})
    return Path(programs, f"python{sysconfig.get_config_var('EXE') or ''}")


def _marker(layer: str) -> Path:
    return VENV / f".{layer}"


def _is_current(layer: str, project: dict[str, Any]) -> bool:
    try:
        return _python().exists() and _marker(layer).read_text() == _digest(layer, project)
    except OSError:
        return False


def _run(command: list[str]) -> None:
    """Run a command; show a line of its output every few seconds, and all output if it fails."""
    environment = {**os.environ, "COMETMQ_BUILD": "interpreted", "PIP_ROOT_USER_ACTION": "ignore"}
    environment.pop("PYTHONPATH", None)
    began_s = shown_s = time.monotonic()
    output = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            now_s = time.monotonic()
            if now_s - shown_s >= PROGRESS_S and line.strip():
                print(f"setup: {now_s - began_s:.0f} s: {line.strip()[:80]}", flush=True)
                shown_s = now_s
    if process.returncode:
        sys.exit(f"setup: {' '.join(command)} ended with {process.returncode}\n{''.join(output)}")


if __name__ == "__main__":
    sys.exit(main())
