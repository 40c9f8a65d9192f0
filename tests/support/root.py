"""What tests need the system's administrator for: mounts, loop devices."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def as_root() -> list[str]:
    """Return what a command begins with to run as root; skips the test if that is not possible."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True).returncode:
        pytest.skip("needs root, or sudo without a password")
    return [sudo, "-n", "-E"]
