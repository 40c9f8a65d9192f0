"""Tells setuptools about the compiled modules; all else stands in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_ext

setup(ext_modules=build_ext.extensions(), cmdclass={"build_ext": build_ext.BuildExt})
