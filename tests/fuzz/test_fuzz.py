"""300 cases of ``python -m tests.fuzz``."""

import subprocess
import sys
from pathlib import Path


def test_damaged_files_are_read_correctly_or_refused_with_one_line() -> None:
    line = [sys.executable, "-m", "tests.fuzz", "--cases", "300", "--seed", "0"]
    done = subprocess.run(line, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
