"""``python -m tools.generate [--check] [MODULE ...]``: see the package.

With ``--check`` nothing is written, and the exit code is 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from importlib.util import find_spec

from tools.generate.root import ROOT, is_current

MODULES = (
    "blocking_client",
    "configuration",
    "dashboards",
    "pages",
    "prometheus_rule",
    "spark_pages",
    "states",
)
NEEDS = {"spark_pages": "pyspark", "blocking_client": "ruff"}
"""The package that a module needs: without it, a run of all modules leaves the module out."""


def main() -> int:
    """Write the files that are out of date, or name them."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file is stale")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.modules) - set(MODULES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(MODULES)}")
    stale = 0
    for name in arguments.modules or MODULES:
        if not arguments.modules and name in NEEDS and find_spec(NEEDS[name]) is None:
            print(f"left out: {name}, which needs {NEEDS[name]}")
            continue
        module = importlib.import_module(f"tools.generate.{name}")
        for path, text in module.files():
            if is_current(path, text):
                continue
            stale += 1
            if arguments.check:
                print(f"out of date: {path.relative_to(ROOT)}; run make generate")
            else:
                path.write_text(text, encoding="utf-8")
                print(f"written: {path.relative_to(ROOT)}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
