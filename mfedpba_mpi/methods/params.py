"""Catalog of methods with their hyper-parameters; it does not import torch, so `--help` and validation stay fast.

A method is implemented in the module of the same name in this package; `load_method` imports it when a run starts.
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
    """Base class of a method's hyper-parameters; a subclass's docstring is the description of the method.

    `fusions` lists the supported fusions. With ``concat`` the widths of fused features and classifiers depend on a
    client's modalities, so methods that share these between clients do not support it.
    """

    label: ClassVar[str]  # display name in tables, figures and messages
    fusions: ClassVar[tuple[str, ...]] = ("sum", "separate")

    def check(self, config: RunConfig) -> None:
        """Raise a UserError if the run's configuration does not fit these parameters."""

    def fit(self, config: RunConfig) -> Self:
        """Fill in the defaults that depend on other settings of the run than the number of rounds."""
        return self

    def resolve(self, rounds: int) -> Self:
        """Fill in the defaults that depend on the number of rounds, so that a run with more rounds keeps them."""
        return self


def _min_class_samples() -> Any:
    """Option of the methods in which clients upload prototypes but no features of single samples."""
    return option(1, "withhold prototypes of classes with fewer than N training samples", low=1)


@dataclass(frozen=True)
class LocalParameters(Parameters):
    """Every client trains alone with cross-entropy, without communication."""

    label = "Local"
    fusions = ("sum", "concat", "separate")


@dataclass(frozen=True)
class FedProtoParameters(Parameters):
    """Features are pulled towards global class prototypes, the mean over clients (Tan et al., AAAI 2022)."""

    label = "FedProto"

    lam: float = option(1.0, "weight lambda of the prototype loss", low=0)
    predict: str = option(
        "prototype", "predict by the nearest global prototype or by the classifier", choices=("prototype", "classifier")
    )
    proto_scope: str | None = option(
        None,
        "prototypes of the fused feature or of each modality [default: modality with fusion separate, else fused]",
        choices=("fused", "modality"),
    )
    proto_source: str = option(
        "clean", "compute prototypes in evaluation mode after training, or from the features during training",
        choices=("clean", "train"),
    )  # fmt: skip
    proto_weighting: str = option(
        "uniform", "weight clients equally or by their samples of the class", choices=("uniform", "samples")
    )
    min_class_samples: int = _min_class_samples()

    def fit(self, config: RunConfig) -> Self:
        """With fusion ``separate`` prototypes are per modality, as in the paper's cost K 2 C |M_k| d."""
        return replace(self, proto_scope=self.proto_scope or ("modality" if config.fusion == "separate" else "fused"))


@dataclass(frozen=True)
class FedTGPParameters(Parameters):
    """FedProto with global prototypes trained on the server with an adaptive margin (Zhang et al., AAAI 2024)."""

    label = "FedTGP"
    proto_scope: ClassVar[str] = "fused"  # read by FedProto's client
    proto_source: ClassVar[str] = "clean"

    lam: float = option(1.0, "weight lambda of the prototype loss", low=0)
    predict: str = option(
        "prototype", "predict by the nearest global prototype or by the classifier", choices=("prototype", "classifier")
    )
    server_epochs: int = option(100, "server epochs S per round over the uploaded prototypes", low=0)
    server_lr: float | None = option(None, "server learning rate [default: same as clients]", above=0)
    server_batch: int | None = option(None, "server batch size [default: same as clients]", low=1)
    margin: float | None = option(None, "maximum margin tau_m between classes [default: 100 sqrt(d / 512)]", low=0)
    hidden: int | None = option(None, "hidden width of the prototype network [default: d]", low=1)
    min_class_samples: int = _min_class_samples()


@dataclass(frozen=True)
class FedPallParameters(Parameters):
    """Adversarial and contrastive alignment, global classifier on mixed features (Zhang et al., ICCV 2025)."""

    label = "FedPall"

    mu: float = option(0.1, "weight of the InfoNCE term", low=0)
    beta: float = option(0.1, "weight of the adversarial term", low=0)
    temperature: float = option(3.0, "temperature T of InfoNCE", above=0)
    server_epochs: int = option(3, "server epochs r per round, for the classifier and for the discriminator", low=0)
    server_lr: float | None = option(None, "server learning rate [default: same as clients]", above=0)
    momentum: float = option(0.9, "momentum of the server's SGD", low=0, high=1)
    weight_decay: float = option(1e-5, "weight decay of the server's SGD", low=0)
    mix_low: float = option(
        0.8, "lower bound of the mixing weight g ~ U(mix_low, 1) of a feature with its prototype", low=0, high=1
    )
    keep: float = option(0.9, "fraction of feature dimensions that the mask keeps", above=0, high=1)
    rho: float = option(1.0, "weight of the global classifier in the client's at the start of a round", low=0, high=1)
    disc_hidden: int = option(64, "hidden width of the discriminator (original: 512)", low=1)
    upload: str = option(
        "samples", "server training data: mixed features of all samples, or mixed prototypes weighted by class counts",
        choices=("samples", "prototypes"),
    )  # fmt: skip


@dataclass(frozen=True)
class HarmonyParameters(Parameters):
    """Unimodal classifiers, then fusion in clusters of similar modality bias (Ouyang et al., MobiSys 2023)."""

    label = "Harmony"

    stage1_rounds: int | None = option(None, "rounds T1 of stage 1 [default: two thirds of all rounds]", low=1)
    encoder_lr_factor: float = option(0.1, "learning rate of the extractors in stage 2, relative to --lr", low=0)
    clusters: int | None = option(
        None, "number of clusters G [default: 2 for K <= 10 clients, 3 for K <= 20, else sqrt(K/2)]", low=1
    )
    average: str = option(
        "updates", "average the updates or the weights of classifiers in a cluster", choices=("updates", "weights")
    )
    stage2_clients: str = option("all", "participants of stage 2", choices=("all", "multimodal"))
    fusion_init: str = option(
        "mean", "initial classifier of stage 2: mean of the unimodal classifiers, or random", choices=("mean", "random")
    )

    def resolve(self, rounds: int) -> Self:
        """T1 defaults to two thirds of the rounds, with at least one round per stage; a single round is stage 1."""
        return replace(self, stage1_rounds=self.stage1_rounds or max(1, min(round(2 * rounds / 3), rounds - 1)))


@dataclass(frozen=True)
class FedMVPParameters(Parameters):
    """Completion of missing modalities, contrast, CKA-weighted aggregation (Che et al., ECML-PKDD 2024)."""

    label = "FedMVP"

    alpha: float = option(0.01, "weight of the contrastive term MCM", low=0)
    beta: float = option(0.5, "weight of RAM, the alignment with the better modality", low=0)
    temperature: float = option(0.1, "temperature of MCM", above=0)
    probes: int = option(256, "number Q of random probes for comparing classifiers by CKA", low=2)
    completion: bool = option(True, "add a token that replaces the missing modalities")


@dataclass(frozen=True)
class FedMobileParameters(Parameters):
    """Reconstruction of missing features by a distilled generator, Shapley-weighted aggregation (WWW 2025)."""

    label = "FedMobile (our reading)"

    lambda_r: float = option(1.0, "weight of the reconstruction term", low=0)
    lambda_g: float = option(1.0, "weight of the classifier's loss on generated features", low=0)
    noise: int = option(16, "dimension n_z of the generator's noise", low=1)
    hidden: int = option(64, "hidden width of the generator", low=1)
    generator_steps: int = option(100, "generator steps S_g per round", low=0)
    generator_lr: float = option(0.005, "learning rate of the generator", above=0)
    generator_optimizer: str = option("sgd", "optimizer of the generator", choices=("sgd", "adam"))
    clusters: int = option(4, "number J of client clusters for Shapley values (2^J evaluations)", low=1, high=12)
    draws: int = option(512, "number of generated features for evaluating coalitions", low=1)


@dataclass(frozen=True)
class MFedPBAParameters(Parameters):
    """Bilateral alignment of feature prototypes (autoencoder, contrast, GW) and logit prototypes (bounded weights)."""

    label = "MFedPBA"
    fusions = ("sum", "concat", "separate")

    lambda_1: float = option(0.01, "weight of the feature alignment L_fea", low=0)
    lambda_2: float = option(1.0, "weight of the logit alignment L_logit", low=0)
    server_lr: float = option(0.01, "learning rate of the server's autoencoder", above=0)
    server_epochs: int = option(10, "server steps S per round", low=0)
    tau: float = option(0.5, "temperature of L_con", above=0)
    gw_epsilon: float = option(0.25, "entropy weight e_0 of the GW plans in L_align; epsilon = e_0 / classes", above=0)
    gw_start: str = option(
        "identity", "start the GW plans of a round at the identity, or at the last round's",
        choices=("identity", "last"),
    )  # fmt: skip
    gw_solver: str = option("newton", "solver of the GW plans: ours, or POT's (slower)", choices=("newton", "pot"))
    server_loss: str = option(
        "mean", "server loss terms: means over prototypes, pairs and modalities, or the printed sums",
        choices=("mean", "sum"),
    )  # fmt: skip
    server_clip: float = option(0.0, "maximum gradient norm of a server step (0: no clipping)", low=0)
    min_class_samples: int = _min_class_samples()
    without: tuple[str, ...] = option(
        (), "ablation: omit these loss terms", choices=("rec", "con", "align", "fea", "logit")
    )
    logit_weights: str = option(
        "bounded",
        "weights of clients in I_G: the paper's inverse entropy, the same bounded, bounded among clients that predict "
        "the class, or equal (ablation EA)",
        choices=("entropy", "bounded", "correct", "equal"),
    )
    global_prototypes: str = option(
        "trained", "ablation: P_G from the trained autoencoder, a random one, the mean of the uploads, or 0",
        choices=("trained", "random", "mean", "zero"),
    )  # fmt: skip

    @property
    def lambdas(self) -> tuple[float, float]:
        """lambda_1 and lambda_2; 0 for a term that is omitted."""
        return 0.0 if "fea" in self.without else self.lambda_1, 0.0 if "logit" in self.without else self.lambda_2

    def check(self, config: RunConfig) -> None:
        """Raise if the feature dimension is odd: the autoencoder halves it."""
        if config.feature_dim % 2:
            raise UserError(
                f"feature-dim: {config.feature_dim} is odd; mfedpba's autoencoder halves it, use an even number"
            )


METHODS: dict[str, type[Parameters]] = {
    "local": LocalParameters,
    "fedproto": FedProtoParameters,
    "fedtgp": FedTGPParameters,
    "fedpall": FedPallParameters,
    "harmony": HarmonyParameters,
    "fedmvp": FedMVPParameters,
    "fedmobile": FedMobileParameters,
    "mfedpba": MFedPBAParameters,
}
SHIPPED = tuple(METHODS)


def owners(parameter: str) -> list[str]:
    """Return the methods that have a parameter of this name."""
    return [method for method, cls in METHODS.items() if parameter in fields_of(cls)]


def make_params(method: str, given: Mapping[str, Any], preset: Mapping[str, Any]) -> Any:
    """Create the hyper-parameters of `method`: its defaults, then the dataset's preset, then the user's values."""
    cls = METHODS[method]
    values = {name: value for name, value in preset.items() if name in fields_of(cls)} | dict(given)
    return cls(**{name: check(cls, name, value, where=f"{method}.") for name, value in values.items()})


def load_method(name: str) -> type[Method]:
    """Return the class that implements a method of the catalog."""
    return _REGISTERED.get(name) or import_module(f"mfedpba_mpi.methods.{name}").METHOD


_REGISTERED: dict[str, type[Method]] = {}


def register(params: type[Parameters], method: type[Method]) -> None:
    """Register a new method; see examples/.

    Parameters
    ----------
    params : type of Parameters
        Its hyper-parameters. The class name in lower case, without ``parameters``, is the method's name.
    method : type of Method
        Its implementation.
    """
    name = params.__name__.lower().removesuffix("parameters")
    if name in SHIPPED:
        raise ValueError(f"method {name} is built in; choose another name")
    METHODS[name], _REGISTERED[name] = params, method
