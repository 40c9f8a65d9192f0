"""Compiles the hot modules; the list below is the whole of it.

Each module is an ordinary typed Python file with a ``.pxd`` beside it. Where no C compiler works
the build goes on without it and the same files run interpreted. ``python build_ext.py`` compiles
in place, next to the sources, which is what an editable install uses.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

COMPILED: dict[str, str] = {
    "cometmq.protocol.octets": "numbers and slices out of every read",
    "cometmq.protocol.checksum": "the checksum of every body",
    "cometmq.protocol.frame": "the lengths of every frame",
    "cometmq.protocol.command": "the header of every frame",
    "cometmq.protocol.hashing": "hash codes of tags and keys, one to four for every message",
    "cometmq.protocol.properties": "the properties of every message, from and to their text",
    "cometmq.protocol.record": "the record of every message, written once and read often",
    "cometmq.protocol.batch": "every message of a batch body",
    "cometmq.protocol.plain_json": "the header of nearly every send and pull",
    "cometmq.protocol.lazy_record": "every message that a consumer gets",
    "cometmq.store.raw": "fixed layouts in mapped memory, several for every message",
    "cometmq.store.segments": "finds the file of every offset",
    "cometmq.store.commit_log": "the record of every message into the log",
    "cometmq.store.consume_queue": "the unit of every message into its queue",
    "cometmq.store.index": "the entries of every message's keys",
    "cometmq.store.dispatch": "queue and index for every record",
    "cometmq.store.appending": "every append",
    "cometmq.store.records": "every record that is walked over",
    "cometmq.store.reading": "every unit that a pull looks at",
    "cometmq.remoting.exchange": "the answer to every request",
    "cometmq.remoting.wire": "every read and every write",
    "cometmq.remoting.connection": "every command that arrives",
    "cometmq.broker.services.windows": "the counters of every send and pull",
    "cometmq.broker.services.stats": "finds the counters of every send and pull",
    "cometmq.broker.services.intake": "the checks of every send",
    "cometmq.broker.services.long_polling": "every pull that waits",
    "cometmq.broker.processors.pull": "every pull",
    "cometmq.broker.processors.send": "every send",
    "cometmq.broker.processors.plain_send": "nearly every send, without objects in between",
    "cometmq.broker.processors.plain_pull": "nearly every pull, the same way",
    "cometmq.broker.processors.plain_frames": "every read, ahead of the two",
    "cometmq.spark.record_rows": "every record that Spark reads, taken apart",
    "cometmq.spark.gathering": "every column that Spark reads",
    "cometmq.spark.columns": "every batch that Spark reads, out of the two",
}
"""Modules worth compiling, and why each one is: it runs once or more for every message."""

ROOT = Path(__file__).resolve().parent
DIRECTIVES = {
    "language_level": "3",
    "binding": True,
    "embedsignature": True,
    "warn.unreachable": False,  # both builds have branches that the other one never takes
}


class BuildExt(build_ext):
    """Turns the modules into C just before compiling; without Cython there are none."""

    def run(self) -> None:
        """Build every module that a compiler can be found for."""
        try:
            from Cython.Build import cythonize
        except ImportError:
            print("build: Cython is not installed", file=sys.stderr)
            return
        translated = cythonize(
            self.extensions,
            compiler_directives=DIRECTIVES,
            build_dir="build/cython",
            include_path=["src"],
            nthreads=os.cpu_count() or 1,
            quiet=True,
        )
        sources = {module.name: module.sources for module in translated}
        for module in self.extensions:
            module.sources = sources[module.name]
        super().run()


def extensions() -> list[Extension]:
    """The modules of the list; none where ``COMETMQ_BUILD=interpreted`` asks for that."""
    if os.environ.get("COMETMQ_BUILD") == "interpreted":
        return []
    return [
        Extension(
            name,
            [str(_source(name).relative_to(ROOT))],
            extra_compile_args=["-O2", "-g0", "-w"],
            optional=True,
        )
        for name in COMPILED
    ]


def is_compiled() -> bool:
    """Whether every module of the list has a compiled file as new as its sources."""
    return all(map(_is_compiled, COMPILED))


def main() -> int:
    """Compile in place what has changed, and say which build the sources have now."""
    os.chdir(ROOT)
    _remove_outdated()
    modules = extensions()
    if modules:
        command = BuildExt(
            Distribution({"name": "cometmq", "package_dir": {"": "src"}, "ext_modules": modules})
        )
        command.inplace = True
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
    missing = [module.name for module in modules if not _is_compiled(module.name)]
    print(f"build: {len(modules) - len(missing)} of {len(COMPILED)} hot modules are compiled")
    for name in missing:
        print(f"build: {name} stays interpreted; is a C compiler installed?", file=sys.stderr)
    return 0


def _remove_outdated() -> None:
    """Remove compiled files that no longer match their source, or are no longer on the list."""
    current = {_source(name): _is_compiled(name) for name in COMPILED}
    for library in ROOT.glob("src/**/*.so"):
        if not current.get(library.with_name(library.name.split(".")[0] + ".py")):
            library.unlink()


def _source(name: str) -> Path:
    return ROOT.joinpath("src", *name.split(".")).with_suffix(".py")


def _is_compiled(name: str) -> bool:
    source = _source(name)
    sources = [path for path in (source, source.with_suffix(".pxd")) if path.exists()]
    newest = max((path.stat().st_mtime for path in sources), default=0.0)
    libraries = source.parent.glob(f"{source.stem}.*.so")
    return any(path.stat().st_mtime >= newest for path in libraries)


if __name__ == "__main__":
    sys.exit(main())
