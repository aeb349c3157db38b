"""The public API: a test here fails when it changes, so that a change is made on purpose and noted in the changelog."""

import inspect
import re

import pytest

import mfedpba_mpi

FUNCTIONS = {
    "average_heads": "(heads, weights)",
    "load_clients": "(run, data_dir=None)",
    "load_run": "(path)",
    "main": "()",
    "option": "(default, help, *, low=None, above=None, high=None, choices=(), files=(), group='')",
    "register_dataset": "(info, loader, origin='real')",
    "register_extractor": "(family, types, builder)",
    "register_method": "(params, method)",
    "simulate": "(config, out='', data_dir=None, *, overwrite=False, resume=False, quiet=False, partition=None, "
    "scratch='', observers=())",
    "standardise": "(matrix, n_train)",
    "write_store": "(path, info, labels, values, origin, provenance, class_names=None)",
}
CLASSES = {
    # the methods that users call or override, with their signatures
    "Architecture": {},
    "AutogradLoss": {},
    "Client": {"update": "(self, t, phase, inbox)", "begin": "(self, inbox)"},
    "Dataset": {},
    "EarlyStopping": {"__init__": "(self, metric='accuracy', patience=20, min_delta=0.0, larger_is_better=True)"},
    "HeadClient": {"loss": "(self, epoch, inbox)"},
    "HeadLoss": {},
    "HeadMethod": {},
    "HeadServer": {"aggregate": "(self, t, uploads)"},
    "JsonLines": {"__init__": "(self, path)"},
    "Layout": {"__init__": "(self, payload, extra=None)"},
    "Message": {},
    "Method": {"upload": "(self, t, phase, k)", "reply": "(self, t, phase, k)", "first": "(self)"},
    "Modality": {},
    "Observer": {
        "start": "(self, start)", "round": "(self, result)", "warn": "(self, t, text)", "end": "(self, end)",
    },
    "Parameters": {"check": "(self, config)"},
    "Partition": {"save": "(self, path)"},
    "PrintProgress": {"__init__": "(self, every=1)"},
    "Run": {"summary": "(self)", "average": "(self)", "frame": "(self)", "predictions": "(self)"},
    "RunConfig": {"to_toml": "(self)"},
    "Server": {"step": "(self, t, phase, uploads)"},
    "SparseRows": {},
}  # fmt: skip


def signature(function):
    """The signature without types."""
    found = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def test_the_public_names_are_these():
    assert set(mfedpba_mpi.__all__) == {*FUNCTIONS, *CLASSES, "__version__"}
    assert sorted(mfedpba_mpi.__all__) == mfedpba_mpi.__all__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_have_these_signatures_and_are_typed(name):
    function = getattr(mfedpba_mpi, name)
    assert signature(function) == FUNCTIONS[name]
    hints = inspect.signature(function)
    assert all(p.annotation is not p.empty for p in hints.parameters.values())
    assert hints.return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_have_these_methods(name):
    cls = getattr(mfedpba_mpi, name)
    assert cls.__doc__
    for method, expected in CLASSES[name].items():
        assert signature(getattr(cls, method)) == expected
        assert method == "__init__" or inspect.getdoc(getattr(cls, method))


def documented(docstring):
    """The parameters of a NumPy docstring that have a type and a description."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    return re.findall(r"^(\w+) : \S.*\n    \S", section[1], re.MULTILINE) if section else []


@pytest.mark.parametrize("name", [*FUNCTIONS, "EarlyStopping", "JsonLines", "Layout", "PrintProgress"])
def test_every_parameter_is_documented_with_its_type(name):
    thing = getattr(mfedpba_mpi, name)
    assert documented(inspect.getdoc(thing)) == list(inspect.signature(thing).parameters)
