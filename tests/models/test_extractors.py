"""The extractor families: shapes, gradients, initialisation, and registered families."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.errors import UserError, describe_error
from mfedpba_mpi.models.architecture import FAMILIES, Architecture, sample_architecture
from mfedpba_mpi.models.extractors import Flat, build_extractor, has_batchnorm
from mfedpba_mpi.models.inputs import SparseRows, modality_rows

D = 24


def example(family: str, n: int, width: int, sparse: bool = False) -> tuple[Architecture, Modality]:
    channels = {"CNN1D": (8,) * (n - 1) + (16,), "CNN2D": (8,) * (n - 1) + (16,), "TextCNN": (8,)}.get(family, ())
    return Architecture(family, (64,) * (n - 1) + (32,), channels), Modality("x", FAMILIES[family][0], width, sparse)


def sparse_rows(rows: int, width: int, nonzeros: int = 20) -> SparseRows:
    rng = np.random.default_rng(0)
    columns = np.concatenate([rng.choice(width, nonzeros, replace=False) for _ in range(rows)])
    values = rng.random(rows * nonzeros, np.float32)
    matrix = sp.csr_array((values, columns, np.arange(rows + 1) * nonzeros), shape=(rows, width))
    return modality_rows(matrix, rows).batch(0, rows)


@pytest.mark.parametrize("width", [6, 64, 240, 2000])
@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_output_and_gradients(family: str, n: int, width: int) -> None:
    torch.manual_seed(0)
    model = build_extractor(*example(family, n, width), D)
    output = model(torch.randn(12, width))
    assert output.shape == (12, D)
    output.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        if not name.endswith("branch.0.bias"):  # BatchNorm subtracts it again
            assert bool(parameter.grad.any()), name
    model.eval()
    assert model(torch.randn(1, width)).shape == (1, D)


@pytest.mark.parametrize("family", ["DNN", "CNN1D", "TextCNN"])
@pytest.mark.parametrize("width", [2000, 34251])
def test_wide_sparse_rows(family: str, width: int) -> None:
    model = build_extractor(*example(family, 3, width, sparse=True), D)
    assert model(sparse_rows(12, width)).shape == (12, D)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_sampled_architecture_can_be_built(family: str) -> None:
    rng = np.random.default_rng(0)
    for width in (6, 47, 76, 216, 647):
        modality = Modality("x", FAMILIES[family][0], width, False)
        model = build_extractor(sample_architecture(rng, modality, (family,)), modality, D)
        assert model(torch.zeros(2, width)).shape == (2, D)
        assert has_batchnorm(model) == (family == "Resmodel")


@pytest.mark.parametrize("width", [128, 2048])
def test_pooling_equals_adaptive_pooling_where_lengths_divide(width: int) -> None:
    """The reference is the CNN1D exactly as in the paper's table: Conv1d, ReLU, AdaptiveMaxPool1d, same weights."""
    torch.manual_seed(0)
    model = build_extractor(*example("CNN1D", 3, width), D)
    x = torch.randn(5, width)
    y = x.unsqueeze(1)
    for layer, length in zip([m for m in model if isinstance(m, nn.Conv2d)], (128, 64, 32), strict=True):
        y = F.pad(y, (layer.padding[1], layer.padding[1]))
        y = F.conv1d(y, layer.weight.squeeze(2), layer.bias, layer.stride[1]).relu()
        y = F.adaptive_max_pool1d(y, length)
    y = y.transpose(1, 2).flatten(1)
    for layer in [m for m in model if isinstance(m, nn.Linear)][:-1]:
        y = layer(y).relu()
    torch.testing.assert_close(model(x), model[-1](y))


def test_fold_fills_images_row_by_row() -> None:
    fold = build_extractor(*example("CNN2D", 2, 7), D)[0]
    assert fold(torch.arange(1.0, 8.0)[None])[0, 0].tolist() == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]


def spread(module: nn.Module, x: Tensor) -> float:
    """Standard deviation of a module's outputs over samples, averaged over outputs."""
    return float(module(x).detach().std(0).mean())


@pytest.mark.parametrize("family", ["DNN", "CNN1D", "CNN2D", "TextCNN"])
def test_he_init_preserves_the_signal_scale(family: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 500)
    shallow, deep = (spread(build_extractor(*example(family, n, 500), D, init="he"), x) for n in (2, 5))
    assert 0.1 < deep / shallow < 10


@pytest.mark.parametrize("family", ["CNN1D", "CNN2D"])
def test_default_init_preserves_the_signal_scale_through_convolutions(family: str) -> None:
    torch.manual_seed(0)
    parts = list(build_extractor(*example(family, 5, 500), D).children())
    flatten = next(i for i, part in enumerate(parts) if isinstance(part, Flat))
    assert 0.1 < spread(nn.Sequential(*parts[:flatten]), torch.randn(200, 500)) < 3


def test_linear_layers_have_the_default_init_of_pytorch() -> None:
    """U(-1/sqrt(n), 1/sqrt(n)) has the deviation 1/sqrt(3 n)."""
    torch.manual_seed(0)
    layer = build_extractor(*example("DNN", 3, 3000), D)[0]
    assert float(layer.weight.detach().std()) == pytest.approx((3 * 3000) ** -0.5, rel=0.02)
    assert layer.bias.any()


def test_sparse_and_dense_layers_have_the_same_init() -> None:
    torch.manual_seed(0)
    sparse, dense = (build_extractor(*example("DNN", 2, 3000, kind), D)[0].weight for kind in (True, False))
    assert float((sparse.std() / dense.std()).detach()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("init", ["pytorch", "he"])
def test_a_registered_family_keeps_the_weights_from_its_builder(own_family: Callable[..., None], init: str) -> None:
    trained = nn.Sequential(nn.Unflatten(1, (1, 3, 3)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, D))
    expected = copy.deepcopy(trained)
    own_family("Own", "I", lambda *_: trained)
    built = build_extractor(Architecture("Own", (32,)), Modality("x", "I", 9), D, init)
    for name, parameter in built.named_parameters():
        assert torch.equal(parameter, expected.get_parameter(name)), name


def test_a_module_that_the_builder_returns_twice_is_copied(own_family: Callable[..., None]) -> None:
    trunk = nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, D))
    expected = copy.deepcopy(trunk.state_dict())
    own_family("Own", "I", lambda *_: trunk)
    first, second = (build_extractor(Architecture("Own", (32,)), Modality("x", "I", 9), D) for _ in range(2))
    first(torch.randn(12, 9))
    nn.init.zeros_(first[1].weight)
    for name, value in second.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_checking_a_registered_family_changes_neither_generators_nor_module(own_family: Callable[..., None]) -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x) + torch.randn(D)

    own_family("Own", "I", lambda architecture, modality, d: Noisy(9, d))
    torch.manual_seed(0)
    built = build_extractor(Architecture("Own", (32,)), Modality("x", "I", 9), D)
    found = torch.rand(1)
    torch.manual_seed(0)
    nn.Linear(9, D)
    assert found == torch.rand(1)
    assert not hasattr(built, "calls")
    assert built.training


class Squeezed(nn.Linear):
    """Maps (1, width) to (d,)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).half()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Linear(9, 5), r"shape \(B, d\): for 3 x 9 inputs float32 \(3, 24\), not float32 \(3, 5\)"),
        (nn.Flatten(0), r"float32 \(3, 24\), not float32 \(27,\)"),
        (Squeezed(9, D), r"for 1 x 9 inputs float32 \(1, 24\), not float32 \(24,\)"),
        (Pair(9, D), r"float32 \(3, 24\), not tuple"),
        (Halved(9, D), r"float32 \(3, 24\), not float16 \(3, 24\)"),
        (nn.Sequential(nn.LazyLinear(7), nn.Linear(7, D)), r"0.weight is a lazy parameter without a shape"),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(9, D)), r"changes its input in place"),
        (torch.zeros(9, D), r"must return an nn.Module, not Tensor"),
    ],
)
def test_an_invalid_registered_family_raises(own_family: Callable[..., None], module: object, words: str) -> None:
    own_family("Own", "I", lambda *_: module)
    with pytest.raises(UserError, match=words) as raised:
        build_extractor(Architecture("Own", (32,)), Modality("pix", "I", 9), D)
    assert describe_error(raised.value).startswith("extractor family Own, modality pix: ")


def test_an_error_in_a_registered_family_names_the_family(own_family: Callable[..., None]) -> None:
    own_family("Own", "I", lambda *_: nn.Linear(4, D))
    with pytest.raises(RuntimeError, match="3x9 and 4x24") as raised:
        build_extractor(Architecture("Own", (32,)), Modality("pix", "I", 9), D)
    assert describe_error(raised.value).startswith("extractor family Own, modality pix: RuntimeError: ")


def test_a_registered_family_is_checked_on_sparse_rows_for_sparse_modalities(own_family: Callable[..., None]) -> None:
    class Dense(nn.Linear):
        def forward(self, x: SparseRows) -> Tensor:
            return super().forward(x.dense())

    own_family("Own", "L", lambda architecture, modality, d: Dense(modality.width, d))
    built = build_extractor(Architecture("Own", (32,)), Modality("words", "L", 40, sparse=True), D)
    assert built(sparse_rows(5, 40)).shape == (5, D)


@pytest.mark.parametrize("types", ["", "X", "IX"])
def test_registering_a_family_for_unknown_types_raises(own_family: Callable[..., None], types: str) -> None:
    with pytest.raises(ValueError, match="extractor family Own: types must be letters of ILAT"):
        own_family("Own", types, nn.Identity)
