"""Errors that end a run: their text on one line, and their exit codes."""

import math

import pytest
import torch

from mfedpba_mpi.errors import (
    INTERRUPTED,
    Ended,
    EndedByObserver,
    RankFailed,
    RankLost,
    RunError,
    UserError,
    check_finite,
    describe_error,
)


def test_the_description_starts_with_the_location_outermost_first():
    error = ZeroDivisionError("division by zero")
    error.add_note("client 2")
    error.add_note("round 3")
    assert describe_error(error) == "round 3, client 2: ZeroDivisionError: division by zero"


def test_the_type_is_left_out_for_errors_that_the_user_can_fix():
    assert describe_error(UserError("lr: 0 is out of range")) == "lr: 0 is out of range"
    assert describe_error(KeyError("x")) == "KeyError: 'x'"


@pytest.mark.parametrize("error", [RunError("round 1: failed"), RankFailed("round 1: failed", 1)])
def test_the_location_is_not_repeated_if_the_message_includes_it(error):
    error.add_note("round 1")
    assert describe_error(error) == "round 1: failed"


def test_exit_codes():
    errors = (UserError(""), RunError(""), RankLost(""), RankFailed("", 2), Ended(INTERRUPTED, "", 75))
    assert [error.exit_code for error in errors] == [2, 1, 1, 2, 75]
    assert issubclass(EndedByObserver, Ended)
    assert Ended(INTERRUPTED, "stopped", 75).status == "interrupted"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_or_element_that_is_not_finite_is_named_with_the_fix(value):
    with pytest.raises(RunError, match=rf"^L_con is not finite \({value}\); lower --lr$"):
        check_finite("L_con", value, "lower --lr")
    with pytest.raises(RunError, match=r"^its E is not finite; lower --lr$"):
        check_finite("its E", torch.tensor([0.0, value]), "lower --lr")


def test_finite_values_are_accepted():
    check_finite("L_con", 1e300, "lower --lr")
    check_finite("its E", torch.zeros(2, 0), "lower --lr")
