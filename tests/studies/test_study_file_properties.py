"""Any document is a study or an error of one line, and a study survives TOML."""

import tomllib

from hypothesis import example, given
from hypothesis import strategies as st

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.studies.study_file import make_study
from tests.properties import examples

PARTS = ["title", "settings", "cross", "table", "quick", "base", "name", "alone"]
SETTINGS = ["seed", "method", "dataset", "mfedpba", "lambda_1", "rounds", "ranks", "partition", "clients"]
NAMES = st.sampled_from([*PARTS, *SETTINGS, "rows", "columns", "best", "cell", "", "x.y", "..", "a/b"])
LEAVES = st.one_of(
    st.sampled_from(["m2", "local", "youtube", "main-table", "..", "", "a\x00b", "row", "seed"]),
    st.integers(-3, 3), st.floats(), st.booleans(), st.text(max_size=3), st.dates(),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
LIKELY = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.lists(st.sampled_from(["local", "mfedpba", "m2"]), min_size=1, max_size=2),
    st.lists(st.dictionaries(st.sampled_from(["name", *SETTINGS]), LEAVES, max_size=3), min_size=1, max_size=3),
    VALUES,
)
CLOSE = st.fixed_dictionaries(
    {
        "settings": st.dictionaries(st.sampled_from(["rounds", "ranks", "clients"]), st.integers(0, 9)).map(
            lambda settings: settings | {"dataset": "youtube"}
        ),
        "cross": st.dictionaries(st.sampled_from([*SETTINGS, "cell"]), LIKELY, min_size=1, max_size=3),
    },
    optional={
        "table": st.dictionaries(st.sampled_from(["rows", "columns", "best"]), VALUES, max_size=2),
        "quick": st.dictionaries(st.sampled_from([*SETTINGS, "cell"]), LIKELY, max_size=2),
    },
)


@examples(600)
@given(st.dictionaries(NAMES, VALUES, max_size=5) | CLOSE)
@example({"cross": {"cell": [{"name": "a", "mfedpba": {"tau": 1}}, {"name": "a"}]}})
@example({"cross": {"seed": [[1], {"name": "x"}]}})
@example({"cross": {"seed": [1]}, "quick": {"seed": {"a": 1}}})
@example({"cross": {"seed": [1]}, "table": {"rows": [1]}})
def test_a_document_is_a_study_or_a_clear_error(tmp_path_factory, document):
    try:
        study = make_study(document, "mine")
        if study.quick:
            study = study.quick_form()
        paths = [key.path for key in study.run_keys()]
        study.plan(tmp_path_factory.getbasetemp())
    except UserError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
    if message:
        return
    assert len(set(paths)) == len(paths)
    assert not any(path.is_absolute() or ".." in path.parts for path in paths)
    again = make_study(tomllib.loads(study.to_toml()), "mine")
    assert again.to_toml() == study.to_toml()
    assert [key.path for key in again.run_keys()] == paths
