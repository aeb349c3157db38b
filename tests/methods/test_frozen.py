"""Local training of any module equals torch.optim.SGD on the same batches and loss, also with frozen parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mfedpba_mpi.data.catalog import Modality
from mfedpba_mpi.methods.base import Client
from mfedpba_mpi.methods.training import AutogradLoss, Epoch, HeadLoss, Loss, cross_entropy
from mfedpba_mpi.models.architecture import Architecture
from mfedpba_mpi.models.extractors import DNN, build_extractor, has_batchnorm
from tests.methods.hand import Data

WIDTH = 4  # of rows and features


def frozen(module: nn.Module, *parts: str) -> nn.Module:
    """Freeze the parameters or submodules with these names."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not any(f"{name}.".startswith(f"{part}." if part else "") for part in parts))
    return module


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, WIDTH))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, WIDTH))


def shipped(family: str, channels: tuple[int, ...] = (), widths: tuple[int, ...] = (5, 5, 4)) -> nn.Module:
    return build_extractor(Architecture(family, widths, channels), Modality("x", "I", WIDTH), WIDTH)


class Tied(nn.Module):
    """Two layers with a shared weight, a buffer changed by each training step, and an unused branch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.b.weight = self.a.weight
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale *= 1.1
        return self.b(torch.tanh(self.a(x))) * self.scale


class Detached(nn.Linear):
    """A layer with trainable weights and a detached output."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def tied_dnn() -> nn.Module:
    module = shipped("DNN", widths=(5, 5, 5))
    module[4].weight = module[2].weight
    return module


class Doubled(DNN):
    """A shipped extractor with its own forward method."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "own module": mlp,
    "own module, frozen first layer": lambda: frozen(mlp(), "0"),
    "own module, frozen middle layer": lambda: frozen(mlp(), "2"),
    "own module, frozen last layer": lambda: frozen(mlp(), "4"),
    "own module, frozen bias": lambda: frozen(mlp(), "2.bias"),
    "own module, all frozen": lambda: frozen(mlp(), ""),
    "own module, frozen BatchNorm": lambda: frozen(normed(), "1"),
    "own module, all frozen but BatchNorm": lambda: frozen(normed(), "0", "3"),
    "own module, tied weights": Tied,
    "own module, tied weights and a frozen bias": lambda: frozen(Tied(), "a.bias"),
    "own module without parameters": nn.Identity,
    "own module with detached output": lambda: Detached(WIDTH, WIDTH),
    "shipped": lambda: shipped("DNN"),
    "shipped, frozen first layer": lambda: frozen(shipped("DNN"), "0"),
    "shipped, frozen middle layer": lambda: frozen(shipped("DNN"), "2"),
    "shipped, frozen bias": lambda: frozen(shipped("DNN"), "4.bias"),
    "shipped, all frozen": lambda: frozen(shipped("DNN"), ""),
    "shipped, frozen convolution": lambda: frozen(shipped("CNN2D", (8, 8, 8), (32, 32, 32)), "1"),
    "shipped, frozen branch": lambda: frozen(shipped("TextCNN", (4,)), "1.0"),
    "shipped, frozen residual block": lambda: frozen(shipped("Resmodel"), "1"),
    "shipped, frozen projection": lambda: frozen(shipped("Resmodel"), "3.skip"),
    "shipped, tied weights": tied_dnn,
    "shipped, subclass with its own forward": lambda: Doubled(
        Architecture("DNN", (5, 5)), Modality("x", "I", WIDTH), WIDTH
    ),
}  # fmt: skip


def reference(client: Client) -> tuple[nn.Module, float]:
    """The client's network after a round of torch.optim.SGD, and the mean squared gradient norm."""
    model = copy.deepcopy(client.model).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser, norms = torch.optim.SGD(trained, lr=client.config.lr), []
    for number in range(client.config.epochs):
        epoch = client.epoch(1, number)
        for start, stop in epoch.cuts:
            optimiser.zero_grad()
            z = sum(f(x.batch(start, stop)) for f, x in zip(model.extractors, epoch.xs, strict=True))
            F.cross_entropy(model.classifier(z), epoch.y[start:stop]).backward()
            norms.append(sum(p.grad.double().square().sum().item() for p in trained if p.grad is not None))
            optimiser.step()
    return model, float(np.mean(norms))


@pytest.fixture(params=[False, True], ids=["by hand", "autograd"])
def client(make_federation, request) -> Client:
    """A client with two modalities; the second extractor is a Linear layer."""
    rng = np.random.default_rng(0)
    data = Data({m: rng.standard_normal((30, WIDTH)).tolist() for m in range(2)}, [i % 3 for i in range(30)])
    settings = {"epochs": 2, "batch_size": 8, "lr": 0.1, "track_gradients": True, "autograd": request.param}
    return make_federation("local", [data], modalities=2, d=WIDTH, **settings).clients[0]


def set_extractor(client: Client, module: nn.Module) -> None:
    client.model.extractors = nn.ModuleList([module, nn.Linear(WIDTH, WIDTH)])
    client.model.has_batchnorm = has_batchnorm(client.model)


def autograd_loss(client: Client, epoch: Epoch) -> Loss:
    def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
        value = cross_entropy(client.model.logits(Z), epoch.y[rows])
        return value, [value]

    return AutogradLoss(client, loss)


def assert_equals_torch_sgd(client: Client, loss: Callable[[Client, Epoch], Loss]) -> None:
    expected, norm = reference(client)
    client.train(1, lambda epoch: loss(client, epoch))
    for (name, found), value in zip(client.model.state_dict().items(), expected.state_dict().values(), strict=True):
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(
                found, value, rtol=1e-4, atol=1e-6, msg=lambda message, name=name: f"{name}: {message}"
            )
    assert client.gradient_norm2 == pytest.approx(norm, rel=1e-3)


@pytest.mark.parametrize("loss", [HeadLoss, autograd_loss])
@pytest.mark.parametrize("name", MODULES)
def test_trainable_parameters_are_trained_as_by_torch_sgd(client: Client, name: str, loss) -> None:
    torch.manual_seed(0)
    set_extractor(client, MODULES[name]())
    before = {name: p.detach().clone() for name, p in client.model.named_parameters() if not p.requires_grad}
    assert_equals_torch_sgd(client, loss)
    assert all(torch.equal(client.model.get_parameter(name), value) for name, value in before.items())


@pytest.mark.parametrize("loss", [HeadLoss, autograd_loss])
def test_a_frozen_classifier_is_unchanged(client: Client, loss) -> None:
    torch.manual_seed(0)
    set_extractor(client, mlp())
    client.model.classifier.requires_grad_(False)
    before = client.model.classifier.weight.clone()
    assert_equals_torch_sgd(client, loss)
    assert torch.equal(client.model.classifier.weight, before)


def test_a_partly_frozen_classifier_needs_autograd_loss(client: Client) -> None:
    set_extractor(client, mlp())
    client.model.classifier.bias.requires_grad_(False)
    with pytest.raises(TypeError, match="HeadLoss can only train the whole classifier; use AutogradLoss"):
        client.train(1, lambda epoch: HeadLoss(client, epoch))
    assert_equals_torch_sgd(client, autograd_loss)


def test_frozen_batchnorm_still_updates_running_statistics(client: Client) -> None:
    set_extractor(client, frozen(normed(), "1"))
    before = client.model.extractors[0][1].running_mean.clone()
    client.train(1, lambda epoch: HeadLoss(client, epoch))
    assert not torch.equal(client.model.extractors[0][1].running_mean, before)


def test_no_graph_is_recorded_through_a_frozen_trunk(client: Client) -> None:
    recorded = []
    module = frozen(mlp(), "0", "2")
    module[2].register_forward_hook(lambda layer, x, y: recorded.append(y.requires_grad))
    set_extractor(client, module)
    client.train(1, lambda epoch: HeadLoss(client, epoch))
    assert recorded
    assert not any(recorded)


def test_a_loss_independent_of_features_leaves_extractors_unchanged(client: Client) -> None:
    set_extractor(client, mlp())
    before = client.model.extractors[0][0].weight.clone()

    def loss(number: int, rows: slice, Z: Tensor) -> tuple[Tensor, list[Tensor]]:
        value = client.model.classifier.bias.square().sum()
        return value, [value]

    client.train(1, lambda epoch: AutogradLoss(client, loss))
    assert torch.equal(client.model.extractors[0][0].weight, before)
