"""Settings of checkpoints, timeouts and failures."""

import pytest

from mfedpba_mpi.config.fault_tolerance import FaultTolerance
from mfedpba_mpi.config.fields import check, fields_of
from mfedpba_mpi.config.run_config import setting_names
from mfedpba_mpi.errors import UserError


def test_none_of_them_is_a_setting_that_changes_results():
    assert not set(fields_of(FaultTolerance)) & set(setting_names())


@pytest.mark.parametrize(
    ("name", "value"), [("checkpoint_every", 0), ("checkpoint_minutes", -1), ("timeout", 0), ("on_failure", "retry")]
)
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=name.replace("_", "-")):
        check(FaultTolerance, name, value)
