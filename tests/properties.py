"""Settings of property tests: the same examples in every run, no time limit, and no files left behind."""

import atexit
import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

_home = tempfile.mkdtemp(prefix="hypothesis-")  # caches; the default is .hypothesis in the current directory
atexit.register(shutil.rmtree, _home, ignore_errors=True)
set_hypothesis_home_dir(_home)


def examples(count: int) -> settings:
    """A decorator for property tests: the number of examples, without a time limit."""
    slow = [HealthCheck.too_slow]  # depends on the machine only
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=slow)
