"""How property tests run: the same examples each time, no clock, and nothing left on disk."""

import atexit
import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

_home = tempfile.mkdtemp(prefix="hypothesis-")  # its caches, which would else be in .hypothesis here
atexit.register(shutil.rmtree, _home, ignore_errors=True)
set_hypothesis_home_dir(_home)


def examples(count: int) -> settings:
    """The decorator of a property: try it on so many examples."""
    slow = [HealthCheck.too_slow]  # says something of the machine only
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=slow)
