"""Compiles the hot modules; the list below is the whole of it.

Each module is an ordinary typed Python file with a ``.pxd`` beside it. Where no C compiler works
the build goes on without it and the same files run interpreted.
"""

import os
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

COMPILED: tuple[str, ...] = ()
"""Modules worth compiling: those that run once or more for every message."""


class BuildExt(build_ext):
    """Cythonizes the list, unless ``COMETMQ_BUILD=interpreted`` asks for none."""

    def finalize_options(self) -> None:
        """Turn the list into extension modules before setuptools looks at it."""
        self.distribution.ext_modules = [] if _interpreted() else _extensions()
        super().finalize_options()


def _interpreted() -> bool:
    return os.environ.get("COMETMQ_BUILD") == "interpreted"


def _extensions() -> list[Extension]:
    from Cython.Build import cythonize

    modules = [
        Extension(
            name,
            [str(Path("src", *name.split(".")).with_suffix(".py"))],
            extra_compile_args=["-O2", "-g0"],
            optional=True,
        )
        for name in COMPILED
    ]
    directives = {"language_level": "3", "binding": True, "embedsignature": True}
    return cythonize(modules, compiler_directives=directives, build_dir="build/cython")
