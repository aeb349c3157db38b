"""Catalog of methods and their hyper-parameters."""

from dataclasses import dataclass

import pytest

from mfedpba_mpi.config.run_config import RunConfig
from mfedpba_mpi.methods import params
from mfedpba_mpi.methods.base import Client, Method, Server
from mfedpba_mpi.methods.local import LocalMethod
from mfedpba_mpi.methods.params import METHODS, HarmonyParameters, Parameters, load_method, owners, register

pytestmark = pytest.mark.usefixtures("unload_plugins")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_label_a_description_and_an_implementation(name):
    cls, method = METHODS[name], load_method(name)
    assert cls.label
    assert cls.__doc__
    assert set(cls.fusions) <= {"sum", "concat", "separate"}
    assert issubclass(method, Method)
    assert issubclass(method.client_class, Client)
    assert method.server_class is None or issubclass(method.server_class, Server)


def test_the_methods_that_have_a_parameter_are_found_by_its_name():
    assert owners("margin") == ["fedtgp"]
    assert owners("server_epochs") == ["fedtgp", "fedpall", "mfedpba"]
    assert owners("rounds") == []


@pytest.mark.parametrize(("rounds", "stage1"), [(1, 1), (2, 1), (3, 2), (90, 60)])
def test_harmony_s_first_stage_has_two_thirds_of_the_rounds_by_default(rounds, stage1):
    assert HarmonyParameters().resolve(rounds).stage1_rounds == stage1
    assert HarmonyParameters(stage1_rounds=7).resolve(rounds).stage1_rounds == 7


def test_fedproto_s_prototypes_are_of_each_modality_with_fusion_separate():
    def scope(fusion, **given):
        return RunConfig.of(dataset="mfeat", method="fedproto", fusion=fusion, **given).params.proto_scope

    assert (scope("sum"), scope("separate")) == ("fused", "modality")
    assert (scope("sum", proto_scope="modality"), scope("separate", proto_scope="fused")) == ("modality", "fused")


def test_logs_of_older_versions_keep_fedproto_s_scope():
    config = RunConfig.of(dataset="mfeat", method="fedproto", fusion="separate")
    old = config.to_json().replace('"proto_scope": "modality"', '"proto_scope": "fused"')
    assert RunConfig.from_json(old).params.proto_scope == "fused"
    assert RunConfig.from_json(config.to_json()) == config


def test_a_registered_method_is_in_the_catalog():
    @dataclass(frozen=True)
    class Mine(Parameters):
        label = "My method"

    register(Mine, LocalMethod)
    assert METHODS["mine"] is Mine
    assert load_method("mine") is LocalMethod


def test_a_built_in_method_cannot_be_replaced():
    @dataclass(frozen=True)
    class Local(Parameters):
        label = "Another"

    with pytest.raises(ValueError, match="method local is built in; choose another name"):
        register(Local, LocalMethod)
    assert load_method("local") is LocalMethod
    assert params.METHODS["local"].label == "Local"
