"""Compiles the hot modules, which are listed below.

Each module is an ordinary typed Python file with a ``.pxd`` beside it. Without a C compiler the
same files run interpreted. ``python build_ext.py`` compiles in place, next to the sources, which
is what an editable install uses, and writes the bytecode of all sources, as ``pip install`` does;
``--prune`` only removes compiled files of older sources.

``COMETMQ_BUILD`` chooses the build. With ``compiled`` a module that does not compile is an error.
With ``interpreted`` nothing is compiled. If it is not set, the modules are compiled if a C compiler
works. Compiled modules call each other through C, so all of them are installed, or none.

A compiled file is current if it was made from the present content of its sources; times of files
do not count. Compiled files are cached below ``$XDG_CACHE_HOME/cometmq``, for all clones of a user.
"""

import compileall
import functools
import hashlib
import json
import os
import platform
import re
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from cometmq.system.platforms import SYSTEM

ROOT = Path(__file__).resolve().parent
COMPILED: dict[str, str] = {
    "cometmq.protocol.octets": "numbers and slices out of every read",
    "cometmq.protocol.checksum": "the checksum of every body",
    "cometmq.protocol.frame": "the lengths of every frame",
    "cometmq.protocol.command": "the header of every frame",
    "cometmq.protocol.hashing": "hash codes of tags and keys, one to four for every message",
    "cometmq.protocol.properties": "the properties of every message, from and to their text",
    "cometmq.protocol.record": "the record of every message, written once and read often",
    "cometmq.protocol.batch": "every message of a batch body",
    "cometmq.protocol.message_id": "the id of every message that is sent",
    "cometmq.protocol.header_scanner": "the header of nearly every send and pull",
    "cometmq.protocol.signature": "the signature of every request that is signed",
    "cometmq.protocol.signed_fields": "the fields of nearly every send and pull that is signed",
    "cometmq.protocol.lazy_record": "every message that a consumer gets",
    "cometmq.sql92.expression": "the expression of every message that a consumer filters by SQL92",
    "cometmq.store.log.new_record": "every message on its way into the log",
    "cometmq.store.log.record_layout": "fixed layouts in mapped memory, several for every message",
    "cometmq.store.log.segments": "finds the file of every offset",
    "cometmq.store.log.commit_log": "the record of every message into the log",
    "cometmq.store.queues.unit_buffers": "the newest units of queues that are not mapped",
    "cometmq.store.queues.consume_queue": "the unit of every message into its queue",
    "cometmq.store.queues.batch_consume_queue": "the same for queues that hold batches",
    "cometmq.store.index.key_index": "the entries of every message's keys",
    "cometmq.store.queues.dispatch": "queue and index for every record",
    "cometmq.store.appender": "every append",
    "cometmq.store.replica": "every record that a slave copies",
    "cometmq.store.log.record_scan": "every record of a scan",
    "cometmq.store.queues.queue_reader": "every unit that a pull reads",
    "cometmq.remoting.requests": "the response to every request",
    "cometmq.remoting.wire": "every read and every write",
    "cometmq.remoting.latencies": "counts every response, if the server has metrics",
    "cometmq.remoting.inflight": "the table of every request and its response",
    "cometmq.remoting.connection": "every command that is received",
    "cometmq.access.fast_check": "the check of nearly every send and pull that is signed",
    "cometmq.client._sending.back_pressure": "the room of every message that is sent",
    "cometmq.client._sending.outgoing": "prepares every message that is sent",
    "cometmq.client._sending.queue_picker": "the queue of every message that is sent",
    "cometmq.client._sending.fast_path": "nearly every send and its response",
    "cometmq.broker.stats.windows": "the counters of every send and pull",
    "cometmq.broker.stats.counters": "finds the counters of every send and pull",
    "cometmq.broker.sending.send": "every send on its way to the store",
    "cometmq.broker.sending.validation": "the checks of every send",
    "cometmq.broker.pulling.long_polling": "every held pull",
    "cometmq.broker.pulling.handler": "every pull",
    "cometmq.broker.sending.handler": "every send",
    "cometmq.broker.sending.fast_path": "nearly every send: the fast path",
    "cometmq.broker.pulling.fast_path": "nearly every pull: the fast path",
    "cometmq.broker.pop.receipts": "the receipt of every acknowledgement",
    "cometmq.broker.pop.check_points": "the check point of every pop and acknowledgement",
    "cometmq.broker.pop.records": "the record of every pop and acknowledgement",
    "cometmq.broker.pop.revive_log": "stores these records",
    "cometmq.broker.pop.part": "what handlers of pops and acknowledgements have in common",
    "cometmq.broker.pop.held_pops": "every pop, which may be held",
    "cometmq.broker.pop.pops": "every pop",
    "cometmq.broker.pop.acks": "every acknowledgement",
    "cometmq.broker.fast_paths": "every read: offers its bytes to both fast paths",
    "cometmq.client._push.process_queue": "every message that waits for a handler",
    "cometmq.client._push.fast_path": "nearly every pull and its response",
    "cometmq.client._push.concurrent": "calls the handler with every message",
    "cometmq.spark.record_rows": "decodes every record that Spark reads",
    "cometmq.spark.gathering": "collects the values of every column that Spark reads",
    "cometmq.spark.columns": "builds every Arrow batch that Spark reads",
}
"""Modules worth compiling, and why each one is: it runs once or more for every message."""

SHARED = "cometmq._cython"
"""Cython's own helpers, compiled once instead of once for every module."""

DIRECTIVES = {
    "language_level": "3",
    "binding": True,
    "embedsignature": True,
    "auto_pickle": False,
    "warn.unreachable": False,  # each build has branches that the other never takes
}
OPTIONS = {"emit_linenums": False, "shared_utility_qualified_name": SHARED}
FLAGS = ("-O2", "-g0", "-w", "-DCYTHON_CLINE_IN_TRACEBACK=0")
MSVC_FLAGS = ("/O2", "/w", "/DCYTHON_CLINE_IN_TRACEBACK=0")
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
RECORD = ROOT / "build" / "compiled.json"
"""The sources and tools from which the compiled files in this tree were made."""

PROGRESS_S = 5.0
"""Seconds between two lines about the progress of a build."""

CACHE_BYTES_MAX = 128 << 20
"""About 20 builds; the least recently used files are removed first."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_CIMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+)?cimport\s+(\([^)]*\)|.*)$", re.MULTILINE)


class BuildError(Exception):
    """The hot modules cannot be compiled; the text says why."""


class SourceError(BuildError):
    """A hot module is wrong, whatever the machine: no build goes on without it."""


def wanted_build() -> str:
    """``compiled``, ``interpreted`` or, if ``COMETMQ_BUILD`` is not set, nothing."""
    wanted = os.environ.get("COMETMQ_BUILD", "")
    if wanted not in ("", "compiled", "interpreted"):
        sys.exit(f"COMETMQ_BUILD is {wanted!r}; it must be compiled, interpreted or empty")
    return wanted


def extensions() -> list[Any]:
    """The compiled modules for setuptools; none for the interpreted build."""
    from setuptools import Extension

    if wanted_build() == "interpreted":
        return []
    optional = wanted_build() != "compiled"
    modules = [
        Extension(name, [str(_source(name).relative_to(ROOT))], optional=optional)
        for name in COMPILED
    ]
    return [Extension(SHARED, [], optional=optional), *modules]


def build_command() -> type[Any]:
    """The class that setuptools runs as its command ``build_ext``."""
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CCompilerError

    class BuildExt(build_ext):
        """Writes the compiled modules where setuptools expects them."""

        cached = 0

        def build_extensions(self) -> None:
            """Compile all modules, or none if there is no C compiler that works."""
            try:
                libraries, self.cached = _libraries(self)
            except (BuildError, CCompilerError) as error:
                if wanted_build() == "compiled" or isinstance(error, SourceError):
                    raise
                print(f"build: {error}: the hot modules stay interpreted", file=sys.stderr)
                return
            paths = {name: Path(self.get_ext_fullpath(name)) for name in libraries}
            try:
                for name, library in libraries.items():
                    paths[name].parent.mkdir(parents=True, exist_ok=True)
                    _replace(paths[name], library)
            except BaseException:  # all of them are installed or none is
                for path in paths.values():
                    with suppress(OSError):
                        path.unlink()
                raise

    return BuildExt


def is_compiled() -> bool:
    """Whether every listed module has a compiled file of its present sources."""
    return not set(_modules()) - _current()


def has_compiler() -> bool:
    """Whether a C compiler and Cython are here."""
    return bool(_tools(_compiler()))


def main() -> int:
    """Compile in place what has changed, and print how many modules are compiled."""
    if sys.argv[1:] not in ([], ["--prune"]):
        sys.exit(f"build_ext.py knows only --prune, not {' '.join(sys.argv[1:])}")
    os.chdir(ROOT)
    started = time.monotonic()
    with _locked(RECORD.with_suffix(".lock")):
        if sys.argv[1:]:
            _prune(is_whole=is_compiled())
            return 0
        interpreted = wanted_build() == "interpreted"
        tools = "" if interpreted else _tools(_compiler())
        is_whole = not interpreted and _current(tools or None) == set(_modules())
        _prune(is_whole=is_whole)
        made = "nothing to do"
        if not interpreted and not is_whole:
            cached = _compile_in_place(tools)
            made = f"{cached} from the cache, {time.monotonic() - started:.0f} s"
        # Where PYTHONDONTWRITEBYTECODE is set, each start would compile 200 sources again.
        compileall.compile_dir(ROOT / "src", quiet=1)
    count = len(COMPILED) if not interpreted and is_compiled() else 0
    print(f"build: {count} of {len(COMPILED)} hot modules are compiled ({made})")
    return 0


def _compile_in_place(tools: str) -> int:
    """Compile all modules next to their sources; return how many came from the cache."""
    from setuptools import Distribution
    from setuptools.errors import CCompilerError

    options = {"name": "cometmq", "package_dir": {"": "src"}, "ext_modules": extensions()}
    command = build_command()(Distribution(options))
    command.inplace = True
    with tempfile.TemporaryDirectory(prefix="cometmq-build-") as folder:
        command.build_lib = folder  # a wheel would contain everything in the usual folder
        command.ensure_finalized()
        try:
            command.run()
        except (BuildError, CCompilerError, OSError) as error:
            sys.exit(f"build: {error}")
    _write_record(tools)
    return int(command.cached)


def _libraries(command: Any) -> tuple[dict[str, bytes], int]:
    """The compiled file of each module, from the cache or made now; and how many were cached."""
    tools = _tools(command.compiler)
    if not tools:
        raise BuildError("Cython or a C compiler is missing")
    keys = {name: _digest(tools.encode(), _sources_digest(name).encode()) for name in _modules()}
    cache = Cache()
    found = {name: library for name, key in keys.items() if (library := cache.get(key))}
    made: dict[str, bytes] = {}
    if missing := [name for name in keys if name not in found]:
        print(
            f"build: compiles {len(missing)} modules: half a minute on two fast processors, minutes"
            " on slow or busy ones",
            flush=True,
        )
        with tempfile.TemporaryDirectory(prefix="cometmq-build-") as folder:
            _check_headers(command.compiler, Path(folder))
            made = _compile(_translate(missing, Path(folder)), command, Path(folder))
    for name, library in made.items():
        cache.put(keys[name], library)
    return found | made, len(found)


def _check_headers(compiler: Any, folder: Path) -> None:
    """Fail before the translation, which takes longer than all else, where headers are missing."""
    from setuptools.errors import CCompilerError

    probe = folder / "probe.c"
    probe.write_text("#include <Python.h>\n")
    try:
        compiler.preprocess(str(probe), str(probe.with_suffix(".i")))
    except CCompilerError as error:
        raise BuildError(
            "Python.h cannot be compiled; expected the headers of Python"
            f" {platform.python_version()}, often a package such as python3-dev"
        ) from error


def _translate(names: list[str], folder: Path) -> dict[str, Path]:
    """Translate modules to C, on all processors."""
    from Cython.Build import cythonize
    from Cython.Compiler.Errors import CompileError
    from setuptools import Extension

    sources: dict[str, Path] = {}
    if SHARED in names:
        sources[SHARED] = folder / f"{SHARED.rpartition('.')[2]}.c"
        generate = f"--generate-shared={sources[SHARED]}"
        try:
            subprocess.run([sys.executable, "-m", "cython", generate], check=True)
        except subprocess.CalledProcessError as error:
            raise BuildError(
                f"Cython ended with {error.returncode} and made no {SHARED}"
            ) from error
    modules = [
        Extension(name, [str(_source(name).relative_to(ROOT))]) for name in names if name != SHARED
    ]
    try:
        with progress("translates to C", dict.fromkeys(names, 1), lambda: _translated(folder)):
            translated = cythonize(
                modules,
                compiler_directives=DIRECTIVES,
                build_dir=str(folder),
                include_path=["src"],
                nthreads=SYSTEM.processors() if len(modules) > 1 else 0,
                force=True,
                quiet=True,
                **OPTIONS,
            )
    except CompileError as error:
        raise SourceError(f"Cython cannot translate a hot module: {error}") from error
    return sources | {module.name: Path(module.sources[0]) for module in translated}


def _compile(sources: dict[str, Path], command: Any, folder: Path) -> dict[str, bytes]:
    """Compile C files side by side, the longest first."""

    flags = MSVC_FLAGS if command.compiler.compiler_type == "msvc" else FLAGS

    def compiled(name: str) -> bytes:
        objects = command.compiler.compile(
            [str(sources[name])], output_dir=str(folder / "objects"), extra_postargs=list(flags)
        )
        library = folder / f"{name}{SUFFIX}"
        command.compiler.link_shared_object(objects, str(library))
        return library.read_bytes()

    sizes = {name: path.stat().st_size for name, path in sources.items()}
    names = sorted(sources, key=sizes.__getitem__, reverse=True)
    made: dict[str, bytes] = {}
    with (
        progress("compiles C", sizes, lambda: [*made]),
        ThreadPoolExecutor(SYSTEM.processors()) as pool,
    ):
        for name, library in zip(names, pool.map(compiled, names), strict=True):
            made[name] = library
    return made


def _translated(folder: Path) -> list[str]:
    """The modules that are translated to C."""
    sources = folder / "src"
    files = sources.rglob("*.c")
    return [".".join(path.relative_to(sources).with_suffix("").parts) for path in files]


@contextmanager
def progress(
    step: str, work: Mapping[str, int], done: Callable[[], Iterable[str]]
) -> Iterator[None]:
    """Print, every few seconds, how many modules are done and how long the others may take.

    Args:
        step: the name of the step.
        work: the modules, and how much work each one is.
        done: returns the modules that are done.
    """
    began_s, ended, total = time.monotonic(), threading.Event(), sum(work.values())

    def show() -> None:
        shown = 0
        while not ended.wait(PROGRESS_S):
            names = [name for name in done() if name in work]
            if len(names) == shown:
                continue
            shown, share = len(names), sum(work[name] for name in names) / total
            rest_s = (time.monotonic() - began_s) * (1 - share) / share
            print(
                f"build: {step}: module {shown} of {len(work)}, about {rest_s:.0f} s to go",
                flush=True,
            )

    thread = threading.Thread(target=show, name="build progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Cache:
    """Compiled files by key, in a folder that several builds may use at once.

    A file begins with the digest of the rest, so a damaged file counts as missing. Its content is
    loaded as native code, so a folder that others can write to is not read. If the folder cannot be
    written, or the user has no home folder, nothing is cached.
    """

    def __init__(self, folder: Path | None = None, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._folder = folder or _cache_folder()
        self._bytes_max = bytes_max

    def get(self, key: str) -> bytes | None:
        """The compiled file of a key; None if it is missing or damaged."""
        if self._folder is None:
            return None
        path = self._folder / key
        try:
            if not _is_own(self._folder):
                return None
            content = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):  # a cache that is only read
            os.utime(path)
        library = content[_DIGEST_BYTES:]
        if hashlib.sha256(library).digest() != content[:_DIGEST_BYTES]:
            return None
        return library

    def put(self, key: str, library: bytes) -> None:
        """Keep a compiled file, and remove the oldest ones if there are too many."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self._folder / key, hashlib.sha256(library).digest() + library)
            self._shrink(self._folder)
        except OSError as error:
            print(f"build: {error}: the compiled file is not cached", file=sys.stderr)

    def _shrink(self, folder: Path) -> None:
        entries = []
        for path in folder.iterdir():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # another build removed it
            if not stat.S_ISREG(found.st_mode):
                continue
            entries.append((found.st_mtime, found.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._bytes_max:
                return
            path.unlink(missing_ok=True)
            total -= size


def _is_own(path: Path) -> bool:
    """Whether nobody but this user can write to it."""
    return SYSTEM.only_user_can_write(path)


def _cache_folder() -> Path | None:
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return home / "cometmq" / "compiled"


def _modules() -> tuple[str, ...]:
    return (SHARED, *COMPILED)


def _source(name: str) -> Path:
    return ROOT.joinpath("src", *name.split(".")).with_suffix(".py")


def _library(name: str) -> Path:
    return _source(name).with_name(name.rpartition(".")[2] + SUFFIX)


def _sources_digest(name: str) -> str:
    """The digest of all files and options that the compiled file of a module depends on."""
    recipe = (name, DIRECTIVES, OPTIONS, FLAGS, MSVC_FLAGS)
    parts = [repr(recipe).encode()]
    if name != SHARED:
        parts += [_source(name).read_bytes(), *map(_read_pxd, sorted(declarations_of(name)))]
    return _digest(*parts)


def declarations_of(name: str) -> set[str]:
    """The modules whose ``.pxd`` a module's C code depends on, including its own."""
    found: set[str] = set()
    waiting = {name}
    while waiting:
        module = waiting.pop()
        found.add(module)
        for package, names in _CIMPORT.findall(_read_pxd(module).decode()):
            words = re.findall(r"[\w.]+", names)
            candidates = {package, *(f"{package}.{word}" for word in words)} if package else words
            waiting.update(set(candidates) & set(COMPILED) - found)
    return found


@functools.cache
def _read_pxd(name: str) -> bytes:
    return _source(name).with_suffix(".pxd").read_bytes()


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()


def _compiler() -> Any:
    import setuptools  # noqa: F401, I001, it brings distutils to Python 3.12
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler

    compiler = new_compiler()
    customize_compiler(compiler)
    return compiler


def _tools(compiler: Any) -> str:
    """Which tools compile here, with their versions; empty if one of them is missing."""
    from setuptools.errors import PlatformError

    try:
        cython = version("cython")
        if compiler.compiler_type == "msvc":
            compiler.initialize()  # finds it, or says that there is none
            words, linker, program = [compiler.cc], compiler.linker, [compiler.cc]  # no --version
        else:
            words, linker = [*compiler.compiler_so], compiler.linker_so
            options = (at for at, word in enumerate(words) if word[0] == "-")
            program = [*words[: next(options, len(words))], "--version"]
        done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError, PackageNotFoundError, PlatformError):
        return ""
    said = done.stdout or done.stderr
    python = (sys.version, SUFFIX, platform.machine(), *platform.libc_ver())
    return repr((cython, python, said, words, linker))


def _current(tools: str | None = None) -> set[str]:
    """The modules whose compiled file was made from the present sources with these tools."""
    try:
        record = json.loads(RECORD.read_bytes())
        if tools is not None and record["tools"] != tools:
            return set()
        made = {name: tuple(digests) for name, digests in record["modules"].items()}
        return {name for name in _modules() if made.get(name) == _digests(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()  # no record, or one that was cut off


def _digests(name: str) -> tuple[str, str]:
    library = _library(name)
    return _sources_digest(name), _digest(library.read_bytes()) if library.exists() else ""


def _write_record(tools: str) -> None:
    modules = {name: _digests(name) for name in _modules() if _library(name).exists()}
    RECORD.parent.mkdir(exist_ok=True)
    _replace(RECORD, json.dumps({"tools": tools, "modules": modules}, indent=1).encode())


def _prune(*, is_whole: bool) -> None:
    """Remove compiled files that are not on the list; all of them if some are not current."""
    kept = {_library(name) for name in _modules()} if is_whole else set()
    for library in ROOT.glob(f"src/**/*{Path(SUFFIX).suffix}"):
        if library not in kept:
            library.unlink()


def _replace(path: Path, content: bytes) -> None:
    """Replace a file at once: a reader sees the old content or the new one, never a part."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        written = Path(file.name)
        try:
            file.write(content)
            file.close()
            written.chmod(0o755)
            SYSTEM.replace(written, path)
        except BaseException:
            written.unlink(missing_ok=True)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        SYSTEM.lock(lock.fileno(), wait=True)
        yield


if __name__ == "__main__":
    sys.exit(main())
