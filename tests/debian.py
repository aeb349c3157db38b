"""Debian packages that some tests need, installed where that is possible."""

import os
import shutil
import subprocess
import sys

# Another test may be installing something; no network is not waited for.
OPTIONS = ("-oDPkg::Lock::Timeout=300", "-oAcquire::http::Timeout=30", "-oAcquire::Retries=1")


def install(*packages: str) -> str:
    """Install packages with apt-get; why that is not possible, or ''."""

    def apt_get(*args: str) -> bool:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        line = ["apt-get", "-q", "-y", *OPTIONS, *args]
        return subprocess.run(line, env=environment, stdout=sys.stderr).returncode == 0

    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"installing {' '.join(packages)} needs root and apt-get"
    line = ("install", "--no-install-recommends", *packages)
    done = apt_get(*line) or (apt_get("update") and apt_get(*line))
    return "" if done else f"apt-get cannot install {' '.join(packages)}"
