"""Debian packages that some tests need, installed where that is possible."""

import os
import shutil
import subprocess
import sys


def install(*packages: str) -> str:
    """Install packages with apt-get; why that is not possible, or ''."""

    def apt_get(*args: str) -> bool:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(["apt-get", "-q", "-y", *args], env=environment, stdout=sys.stderr).returncode == 0

    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"installing {' '.join(packages)} needs root and apt-get"
    line = ("install", "--no-install-recommends", *packages)
    return (
        ""
        if apt_get(*line) or (apt_get("update") and apt_get(*line))
        else f"apt-get cannot install {' '.join(packages)}"
    )
