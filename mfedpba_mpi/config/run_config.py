"""The configuration of a run: all settings that its results depend on.

Order of precedence: command line, ``--config`` file, the dataset's preset, the defaults below.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mfedpba_mpi.config.assignments import combine, full_name
from mfedpba_mpi.config.fields import check, fields_of, option, shown, toml
from mfedpba_mpi.config.presets import preset_of
from mfedpba_mpi.data.catalog import CATALOG, Dataset
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.methods.params import METHODS, make_params
from mfedpba_mpi.models.architecture import FAMILIES
from mfedpba_mpi.plugins import load_defaults

PROBLEM, CLIENTS, TRAINING, MACHINE = "Problem", "Clients", "Training", "Machine"
# Settings that logs of older versions lack, with the values that these versions behaved as if they had
ADDED: dict[str, Any] = {"allow_synthetic": True, "autograd": False, "clip": 0.0, "problem_seed": None}
HARMLESS = ("allow_synthetic",)  # does not change results
OPEN = {"clients": 0, "partition": ""}  # placeholders for values that depend on the data, see `fit_to_data`
PARTITION_FILES = (".csv", ".h5")
MIN_SAMPLES = 8  # minimum per client: 6 for training, 2 for tests


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run. The same configuration and data give the same bits on any number of ranks."""

    dataset: str = option(
        "", "youtube, reuters, nus-wide, caltech101, mfeat, synthetic, an imported dataset, or a FILE.h5",
        group=PROBLEM,
    )  # fmt: skip
    method: str = option("mfedpba", "method", choices=METHODS, group=PROBLEM)
    partition: str = option(
        "",
        "modalities per client: two, one or more, one [default: m2 if K <= M, m1+ if K > M]; or a partition in a "
        "FILE.csv or FILE.h5, which may be the run.h5 of another run",
        choices=("m2", "m1+", "m1"), files=PARTITION_FILES, group=PROBLEM,
    )  # fmt: skip
    clients: int = option(0, "number of clients K [default: number of modalities M]", low=1, group=PROBLEM)
    alpha: float | None = option(
        None,
        "label skew: Dirichlet(alpha) over clients [default: 0.5 if K > M, else no skew]",
        above=0,
        high=1e6,
        group=PROBLEM,
    )
    fusion: str = option(
        "sum", "fusion of a client's modalities; the paper's tables use separate",
        choices=("sum", "concat", "separate"), group=PROBLEM,
    )  # fmt: skip
    validation: float = option(
        0.0, "for tuning: hold out this share of the training rows, and evaluate on it instead of the test rows",
        low=0, high=0.3, group=PROBLEM,
    )  # fmt: skip
    seed: int = option(0, "random seed  [default: 0]", low=0, high=2**63 - 1, group=PROBLEM)
    problem_seed: int | None = option(
        None, "seed that draws the clients' modalities, rows and networks; --seed then draws only the rest, such as "
        "weights and shuffles [default: same as --seed]",
        low=0, high=2**63 - 1, group=PROBLEM,
    )  # fmt: skip
    allow_synthetic: bool = option(
        True, "whether to use a synthetic stand-in if the data are missing  [default: allowed]", group=PROBLEM
    )
    samples: int | None = option(None, "samples, for --dataset synthetic  [default: 2000]", low=16, group=PROBLEM)
    classes: int | None = option(None, "classes, for --dataset synthetic  [default: 10]", low=2, group=PROBLEM)
    dims: tuple[int, ...] | None = option(
        None, "feature dimensions of the modalities, for --dataset synthetic  [default: 64,128]", low=1, group=PROBLEM
    )

    feature_dim: int = option(48, "feature dimension d", low=2, group=CLIENTS)
    families: tuple[str, ...] = option(
        (), "families to draw extractors from [default: all shipped families, none from plugins]",
        choices=FAMILIES, group=CLIENTS,
    )  # fmt: skip
    init: str = option(
        "pytorch", "initial weights: PyTorch's (He's in convolutions), or He's in hidden layers; families from plugins "
        "keep their own",
        choices=("pytorch", "he"), group=CLIENTS,
    )  # fmt: skip
    normalise: str = option(
        "standard", "standardise dense inputs by the client's mean and deviation, scale sparse rows by their norm",
        choices=("standard", "none"), group=CLIENTS,
    )  # fmt: skip

    rounds: int = option(100, "communication rounds T", low=1, group=TRAINING)
    lr: float = option(0.01, "client learning rate (plain SGD)", above=0, group=TRAINING)
    clip: float = option(
        5.0, "maximum joint gradient norm of a client's SGD step (0: no clipping)", low=0, group=TRAINING
    )
    epochs: int = option(2, "local epochs E per round", low=1, group=TRAINING)
    batch_size: int = option(12, "mini-batch size", low=2, group=TRAINING)
    participation: float = option(1.0, "share of clients sampled in each round", above=0, high=1, group=TRAINING)
    eval_every: int = option(1, "evaluate every N rounds, and after the last", low=1, group=TRAINING)
    track_gradients: bool = option(
        False,
        "log gradient norms of clients (/rounds/gradient_norm2) and of MFedPBA's server loss terms,"
        " and what new prototypes change in a client's loss (slower)",
        group=TRAINING,
    )

    device: str = option(
        "auto", "device; the ranks of a node share its GPUs", choices=("auto", "cpu", "cuda"), group=MACHINE
    )
    autograd: bool = option(
        False,
        "train by autograd as plain PyTorch does, for comparing the methods' client times (slower; equal up to "
        "rounding)",
        group=MACHINE,
    )
    threads: int = option(1, "torch threads per rank (bits depend on it)", low=1, high=1024, group=MACHINE)

    params: Any = dataclasses.field(default=None, metadata={"group": None})  # of the method

    @classmethod
    def of(cls, **settings: Any) -> RunConfig:
        """The configuration that the command line makes of these settings: the others come from the dataset's preset.

        The method's parameters may be given by name, ``RunConfig.of(dataset="mfeat", tau=1.0)``, or in a dictionary
        under the method's name, ``mfedpba={"tau": 1.0}``.
        """
        return make_config(settings)

    def to_json(self) -> str:
        """The configuration as JSON, with the method's parameters in a table under its name."""
        values = {name: getattr(self, name) for name in setting_names()}
        return json.dumps(values | {self.method: dataclasses.asdict(self.params)})

    def to_toml(self) -> str:
        """The configuration as a file for ``--config``, with comments at values from the dataset's preset."""
        preset = preset_of(self.dataset)

        def lines(values: Mapping[str, Any]) -> Iterator[str]:
            for name, value in values.items():
                if value not in (None, OPEN.get(name)):
                    mark = f"  # the preset of {self.dataset}" if name in preset and value == preset[name] else ""
                    yield f"{name} = {toml(value)}{mark}"

        settings = {name: getattr(self, name) for name in setting_names()}
        return "\n".join([*lines(settings), "", f"[{self.method}]", *lines(dataclasses.asdict(self.params)), ""])

    def as_dict(self) -> dict[str, Any]:
        """The configuration as a dictionary of JSON values."""
        return json.loads(self.to_json())

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The configuration from `to_json`. Refuses missing and unknown settings, and checks every value."""
        load_defaults()
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the configuration is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise UserError(f"the configuration is not a table of settings: {shown(values)}")
        _refuse_missing([name for name in setting_names() if name not in ADDED], values)
        if values["method"] not in [*METHODS]:  # a list, since the value may be unhashable
            name = shown(values["method"])
            raise UserError(f"unknown method {name}; if it comes from a plugin, load it with --plugin FILE.py")
        values = ADDED | values
        config = make_config({name: value for name, value in values.items() if name not in OPEN or value != OPEN[name]})
        _refuse_missing([config.method], values)
        _refuse_missing(fields_of(type(config.params)), values[config.method], f"{config.method}.")
        for name in values:
            if name in METHODS and name != config.method:
                raise UserError(f"{name}: parameters of another method than {config.method}")
        return config

    @property
    def drawn_problem_seed(self) -> int:
        """The seed that draws the problem: `problem_seed`, or `seed` without one."""
        return self.seed if self.problem_seed is None else self.problem_seed

    @property
    def run_name(self) -> str:
        """``<dataset>-<partition>-<method>-s<seed>``, the default name of the run's directory.

        ``-p<problem seed>`` follows if there is one.
        """
        problem = "" if self.problem_seed is None else f"-p{self.problem_seed}"
        return f"{Path(self.dataset).stem}-{Path(self.partition).stem}-{self.method}-s{self.seed}{problem}"

    @property
    def partition_file(self) -> Path | None:
        """The partition file; None if the partition is drawn."""
        return Path(self.partition) if self.partition.endswith(PARTITION_FILES) else None


def setting_names() -> list[str]:
    """The names of a run's settings, without the method's parameters."""
    return [name for name in fields_of(RunConfig) if name != "params"]


def _refuse_missing(names: Iterable[str], values: Mapping[str, Any], prefix: str = "") -> None:
    missing = ", ".join(f"{prefix}{name}" for name in names if name not in values)
    if missing:
        raise UserError(f"the configuration is incomplete; missing: {missing}")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary; errors contain the path."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError) as error:  # also an integer with too many digits, or nested too deeply
        raise UserError(f"{path} is not valid TOML: {error}") from None


def make_config(
    given: Mapping[str, Any], file: Mapping[str, Any] | None = None, assignments: Sequence[tuple[str, Any]] = ()
) -> RunConfig:
    """The configuration of the user's settings, the file and the preset; unknown names and bad values are UserErrors.

    Parameters
    ----------
    given : settings by their full or bare names (see `config.assignments`), or a method's parameters in a dictionary
        under its name, ``{"mfedpba": {"lambda_1": 0.1}}``.
    file : the same, from a TOML file; `given` takes precedence.
    assignments : more of `given`, from ``--set``; the same setting with different values is an error.
    """
    load_defaults()
    file = file or {}
    method = check(RunConfig, "method", {**file, **given, **dict(assignments)}.get("method", RunConfig.method))
    values = _by_full_name(file.items(), method) | _by_full_name([*given.items(), *assignments], method)
    others = [name for name in values if "." in name and not name.startswith(f"{method}.")]
    if others:
        other = others[0].partition(".")[0]
        raise UserError(
            f"{', '.join(others)}: belongs to method {other}, but this run's method is {method}; drop it, or use "
            f"--method {other}"
        )
    settings = {name: value for name, value in values.items() if "." not in name}
    own = {name.removeprefix(f"{method}."): value for name, value in values.items() if "." in name}
    if not settings.get("dataset"):
        raise UserError(f"dataset: missing; give --dataset {'|'.join(CATALOG)}|synthetic|FILE.h5")
    preset = preset_of(str(settings["dataset"]))
    merged = {name: value for name, value in preset.items() if name in setting_names()} | settings
    config = RunConfig(**{name: check(RunConfig, name, value) for name, value in merged.items()})
    config = dataclasses.replace(config, params=make_params(method, own, preset))
    shape = [name for name in ("samples", "classes", "dims") if settings.get(name) is not None]
    if shape and config.dataset != "synthetic":
        raise UserError(f"{shape[0]}: only for --dataset synthetic, not for {config.dataset}")
    fusions = METHODS[config.method].fusions
    if config.fusion not in fusions:
        raise UserError(
            f"fusion: {config.fusion} gives clients features and classifiers of different sizes, which {config.method} "
            f"cannot share; use {' or '.join(fusions)}"
        )
    config.params.check(config)
    return dataclasses.replace(config, params=config.params.fit(config))


def _by_full_name(settings: Iterable[tuple[str, Any]], method: str) -> dict[str, Any]:
    """The settings by their full names; a method's table is taken apart."""
    flattened: list[tuple[str, Any]] = []
    for name, value in settings:
        if name not in METHODS:
            flattened.append((name, value))
        elif isinstance(value, Mapping):
            flattened += [(f"{name}.{parameter}", item) for parameter, item in value.items()]
        else:
            raise UserError(f"unknown setting '{name}'; a method's parameters are a table, [{name}]")
    return combine(flattened, lambda name: full_name(name, setting_names(), [method]))


def fit_to_data(config: RunConfig, info: Dataset) -> RunConfig:
    """Set the number of clients, the partition and the label skew by the dataset; refuse impossible ones."""
    if config.partition_file:
        return _fit_to_file(config, config.partition_file, info)
    M = len(info.modalities)
    K = config.clients or M
    partition = config.partition or ("m1" if M == 1 else "m2" if K <= M else "m1+")
    if partition == "m2" and M < 2:
        raise UserError(f"partition: m2 needs two modalities, but {info.name} has one; use --partition m1")
    if info.samples < K * MIN_SAMPLES:
        most = info.samples // MIN_SAMPLES
        raise UserError(
            f"clients: {K} is too many for the {info.samples} samples of {info.name}; at least {MIN_SAMPLES} samples "
            f"per client allow at most {most}"
        )
    alpha = config.alpha if config.alpha is not None else (0.5 if K > M else None)
    return dataclasses.replace(config, clients=K, partition=partition, alpha=alpha)


def _fit_to_file(config: RunConfig, path: Path, info: Dataset) -> RunConfig:
    """Set the number of clients by the partition file."""
    from mfedpba_mpi.data.partition_file import read_partition_file

    if config.alpha is not None:
        raise UserError(f"alpha: has no effect on the partition in {path}; leave --alpha out")
    K = len(read_partition_file(path, info).modalities)
    if config.clients not in (0, K):
        raise UserError(f"clients: {config.clients}, but {path} has {K}; leave --clients out")
    return dataclasses.replace(config, clients=K)
