"""Gives setuptools the compiled modules and the README; pyproject.toml holds the rest."""

import re
import sys
import tomllib
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_ext

ROOT = build_ext.ROOT
project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
pages = f"{project['urls']['Source']}/blob/HEAD/"
readme = (ROOT / "README.md").read_text()

setup(
    ext_modules=build_ext.extensions(),
    cmdclass={"build_ext": build_ext.build_command()},
    # The page of a package index has none of the files that the README links to.
    long_description=re.sub(
        r"(!?\[[^]]*\]\()(?!https?://|#)([^)]*)",
        lambda link: f"{link[1]}{pages}{link[2]}{'?raw=true' * (link[1][0] == '!')}",
        readme,
    ),
    long_description_content_type="text/markdown",
)
