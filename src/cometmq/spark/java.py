"""Finds the Java that Spark runs on, before PySpark is installed or started.

Importing it needs no PySpark: ``make pipeline-demo`` checks for Java before it downloads Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cometmq.model.errors import CometError

JAVA_OLDEST = 17
"""Spark 4 needs it."""
_NEEDED = (
    f"Java {JAVA_OLDEST} or newer (a JRE is enough, on Debian 'apt-get install"
    f" openjdk-{JAVA_OLDEST}-jre-headless')"
)
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class SparkStartError(CometError):
    """Java is missing, or Spark's daemons ended or kept silent before they were ready."""


def find_java() -> str:
    """Give the path of the Java that Spark will run on.

    Raises:
        SparkStartError: there is none, or it is too old; says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        where = f"below JAVA_HOME={home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise SparkStartError(f"no java {where}: Spark needs {_NEEDED}")
    version = java_version(found)
    if version is not None and version < JAVA_OLDEST:
        raise SparkStartError(f"{found} is of version {version}: Spark needs {_NEEDED}")
    return found


def java_version(java: str | Path) -> int | None:
    """Give the main version of a Java, such as 17; None if it says none."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = _JAVA_VERSION.search(said)
    return version and int(version[1])


def main() -> None:
    """End with a sentence and status 1 if there is no Java that runs Spark."""
    try:
        find_java()
    except SparkStartError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
