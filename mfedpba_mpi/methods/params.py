"""Every method with a sentence and its own hyper-parameters; light, so that `--help` and validation need no torch.

The method itself is the module of the same name in this package; `load_method` brings it in when a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mfedpba_mpi.config.fields import check, fields_of, option
from mfedpba_mpi.errors import UserError

if TYPE_CHECKING:
    from mfedpba_mpi.config.run_config import RunConfig
    from mfedpba_mpi.methods.base import Method


class Parameters:
    """A method's hyper-parameters; the docstring is its sentence.

    `fusions` are those it works with: ``concat`` makes features and classifiers of clients with different modalities
    differently wide, so that they cannot be shared.
    """

    label: ClassVar[str]  # its name wherever its numbers are shown
    fusions: ClassVar[tuple[str, ...]] = ("sum", "separate")

    def check(self, config: RunConfig) -> None:
        """Refuse a run that these do not go with."""

    def settled(self, rounds: int) -> Self:
        """These, with what follows from the number of rounds written out, so that a longer run keeps it."""
        return self


def _min_class_samples() -> Any:
    """The setting of methods whose clients send prototypes, and no features of single samples."""
    return option(1, "a client keeps the prototypes of classes of which it has fewer training samples to itself", low=1)


@dataclass(frozen=True)
class Local(Parameters):
    """Every client trains alone with cross-entropy; nothing is sent."""

    label = "Local"
    fusions = ("sum", "concat", "separate")


@dataclass(frozen=True)
class FedProto(Parameters):
    """Clients are pulled towards the mean of all clients' class prototypes (Tan et al., AAAI 2022)."""

    label = "FedProto"

    lam: float = option(1.0, "weight lambda of the pull towards the global prototypes", low=0)
    predict: str = option("prototype", "by the nearest global prototype or by h_k", choices=("prototype", "classifier"))
    proto_scope: str = option("fused", "prototypes of the fused feature or of each one", choices=("fused", "modality"))
    proto_source: str = option(
        "clean", "prototypes from a clean pass after training, or from the features seen in training",
        choices=("clean", "train"),
    )  # fmt: skip
    proto_weighting: str = option(
        "uniform", "clients count the same, or by their samples of the class", choices=("uniform", "samples")
    )
    min_class_samples: int = _min_class_samples()


@dataclass(frozen=True)
class FedTGP(Parameters):
    """FedProto with prototypes that the server trains, kept apart by an adaptive margin (Zhang et al., AAAI 2024)."""

    label = "FedTGP"
    proto_scope: ClassVar[str] = "fused"  # its clients are FedProto's
    proto_source: ClassVar[str] = "clean"

    lam: float = option(1.0, "weight lambda of the pull towards the global prototypes", low=0)
    predict: str = option("prototype", "by the nearest global prototype or by h_k", choices=("prototype", "classifier"))
    server_epochs: int = option(100, "server epochs S a round over the uploaded prototypes", low=0)
    server_lr: float | None = option(None, "server learning rate [default: the clients']", above=0)
    server_batch: int | None = option(None, "server batch size [default: the clients']", low=1)
    margin: float | None = option(None, "largest margin between classes, tau_m [default: 100 sqrt(d / 512)]", low=0)
    hidden: int | None = option(None, "hidden width of the prototype network [default: d]", low=1)
    min_class_samples: int = _min_class_samples()


@dataclass(frozen=True)
class FedPall(Parameters):
    """Adversarial and contrastive alignment, and a classifier trained on mixed features (Zhang et al., ICCV 2025)."""

    label = "FedPall"

    mu: float = option(0.1, "weight of the InfoNCE term", low=0)
    beta: float = option(0.1, "weight of the adversarial term", low=0)
    temperature: float = option(3.0, "temperature T of InfoNCE", above=0)
    server_epochs: int = option(3, "server epochs r a round, for the classifier and for the discriminator", low=0)
    server_lr: float | None = option(None, "server learning rate [default: the clients']", above=0)
    momentum: float = option(0.9, "momentum of the server's SGD", low=0, high=1)
    weight_decay: float = option(1e-5, "weight decay of the server's SGD", low=0)
    mix_low: float = option(
        0.8, "a feature's share g in its mix with the prototype is drawn from U(this, 1)", low=0, high=1
    )
    keep: float = option(0.9, "share of the features that the mask lets through", above=0, high=1)
    rho: float = option(1.0, "share of the global classifier in the client's at the start of a round", low=0, high=1)
    disc_hidden: int = option(64, "width of the discriminator (the original: 512)", low=1)
    upload: str = option(
        "samples", "what the server trains on: every sample's mixed feature, or mixed prototypes weighted by counts",
        choices=("samples", "prototypes"),
    )  # fmt: skip


@dataclass(frozen=True)
class Harmony(Parameters):
    """Unimodal classifiers first, then fusion in clusters of like modality bias (Ouyang et al., MobiSys 2023)."""

    label = "Harmony"

    stage1_rounds: int | None = option(None, "rounds T1 of the first stage [default: two thirds]", low=1)
    encoder_lr_factor: float = option(0.1, "extractors' learning rate in stage 2, relative to --lr", low=0)
    clusters: int | None = option(None, "clusters G [default: 2 to 10 clients, 3 to 20, else sqrt(K/2)]", low=1)
    average: str = option(
        "updates", "what is averaged in a cluster: classifiers' updates or weights", choices=("updates", "weights")
    )
    stage2_clients: str = option("all", "who takes part in stage 2", choices=("all", "multimodal"))
    fusion_init: str = option(
        "mean", "stage 2 starts from the mean of the unimodal classifiers, or a random one", choices=("mean", "random")
    )

    def settled(self, rounds: int) -> Self:
        """T1 as given, else two thirds of the rounds, at least one for each stage (of a single round, stage 1)."""
        return replace(self, stage1_rounds=self.stage1_rounds or max(1, min(round(2 * rounds / 3), rounds - 1)))


@dataclass(frozen=True)
class FedMVP(Parameters):
    """A completed token for missing modalities, contrast, and CKA-weighted classifiers (Che et al., ECML-PKDD 2024)."""

    label = "FedMVP"

    alpha: float = option(0.01, "weight of the contrastive term MCM", low=0)
    beta: float = option(0.5, "weight of the alignment with the better modality, RAM", low=0)
    temperature: float = option(0.1, "temperature of MCM", above=0)
    probes: int = option(256, "random probes Q on which classifiers are compared", low=2)
    completion: bool = option(True, "stand-in token for the missing modalities")


@dataclass(frozen=True)
class FedMobile(Parameters):
    """Missing features rebuilt by a distilled generator, contributions by clustered Shapley values (WWW 2025)."""

    label = "FedMobile (our reading)"

    lambda_r: float = option(1.0, "weight of the reconstruction term", low=0)
    lambda_g: float = option(1.0, "weight of the classifier's loss on generated features", low=0)
    noise: int = option(16, "width n_z of the generator's noise", low=1)
    hidden: int = option(64, "hidden width of the generator", low=1)
    generator_steps: int = option(100, "generator steps S_g a round", low=0)
    generator_lr: float = option(0.005, "learning rate of the generator", above=0)
    generator_optimizer: str = option("sgd", "optimiser of the generator", choices=("sgd", "adam"))
    clusters: int = option(
        4, "clusters J of clients whose Shapley values are computed (2^J evaluations)", low=1, high=12
    )
    draws: int = option(512, "generated features on which coalitions are valued", low=1)


@dataclass(frozen=True)
class MFedPBA(Parameters):
    """Bilateral alignment: feature prototypes by autoencoder, contrast and GW; logit prototypes by entropy."""

    label = "MFedPBA"
    fusions = ("sum", "concat", "separate")

    lambda_1: float = option(0.01, "weight of the feature alignment L_fea", low=0)
    lambda_2: float = option(1.0, "weight of the logit alignment L_logit", low=0)
    server_lr: float = option(0.01, "learning rate of the server's autoencoder", above=0)
    server_epochs: int = option(10, "server steps S a round", low=0)
    tau: float = option(0.5, "temperature of L_con", above=0)
    gw_epsilon: float = option(0.25, "e_0 of L_align's entropic GW; epsilon = e_0 / classes", above=0)
    server_clip: float = option(5.0, "largest joint gradient norm of a server step (0: no clipping)", low=0)
    min_class_samples: int = _min_class_samples()
    without: tuple[str, ...] = option(
        (), "ablation: leave out these loss terms", choices=("rec", "con", "align", "fea", "logit")
    )
    equal_average: bool = option(False, "ablation EA: average logit prototypes equally, not by entropy")

    def check(self, config: RunConfig) -> None:
        """The autoencoder halves features."""
        if config.feature_dim % 2:
            raise UserError(
                f"feature-dim: {config.feature_dim} is odd; mfedpba's autoencoder halves it, so make it even"
            )


METHODS: dict[str, type[Parameters]] = {
    cls.__name__.lower(): cls for cls in (Local, FedProto, FedTGP, FedPall, Harmony, FedMVP, FedMobile, MFedPBA)
}
SHIPPED = tuple(METHODS)


def owners(parameter: str) -> list[str]:
    """The methods that have a parameter of this name."""
    return [method for method, cls in METHODS.items() if parameter in fields_of(cls)]


def make_params(method: str, given: Mapping[str, Any], preset: Mapping[str, Any]) -> Any:
    """The hyper-parameters of `method`: its defaults, then the dataset's preset, then what the user gave."""
    cls = METHODS[method]
    values = {name: value for name, value in preset.items() if name in fields_of(cls)} | dict(given)
    return cls(**{name: check(cls, name, value, where=f"{method}.") for name, value in values.items()})


def load_method(name: str) -> type[Method]:
    """The class that implements a method of the catalog."""
    return _REGISTERED.get(name) or import_module(f"mfedpba_mpi.methods.{name}").METHOD


_REGISTERED: dict[str, type[Method]] = {}


def register(params: type[Parameters], method: type[Method]) -> None:
    """Make a method of your own known, by the name of its parameters' class in lower case; see examples/."""
    name = params.__name__.lower()
    if name in SHIPPED:
        raise ValueError(f"{name} comes with the program; call yours something else")
    METHODS[name], _REGISTERED[name] = params, method
