"""``--clip``: the joint gradient norm of a client's SGD step, for every method."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.methods.training import AutogradLoss, HeadLoss
from mfedpba_mpi.models.manual_sgd import JointNorm
from tests.methods.test_gradients import EXTRA_LOSSES, batch_losses, federation


def train_plainly(client, extra_loss, t, inbox, clip):
    """A copy of the client's model after round `t`: autograd, `clip_grad_norm_` and torch's SGD."""
    model = copy.deepcopy(client.model).train()
    optimiser, norms = torch.optim.SGD(model.parameters(), client.config.lr), []
    for loss in batch_losses(client, model, extra_loss, t, inbox):
        optimiser.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimiser.step()
    return model, norms


@pytest.mark.parametrize("families", ["DNN", "DNN,Resmodel", "CNN2D,TextCNN,CNN1D"])
@pytest.mark.parametrize("method", EXTRA_LOSSES)
@pytest.mark.parametrize("autograd", [False, True])
def test_a_clipped_round_equals_the_plain_loop(tiny, tmp_path, method, families, autograd):
    settings = {"clip": 0.5, "clients": 6, "alpha": 0.3, "samples": 200, "lr": 0.02}
    config = tiny(method=method, families=families, autograd=autograd, **settings)
    server, clients = federation(config, tmp_path)
    inbox, all_norms = {}, []
    for t in (1, 2):
        plain = [train_plainly(client, EXTRA_LOSSES[method], t, inbox, 0.5) for client in clients]
        uploads = {k: client.update(t, 0, inbox) for k, client in enumerate(clients)}
        for client, (model, norms) in zip(clients, plain, strict=True):
            all_norms += norms
            for found, expected in zip(client.model.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-3, atol=1e-5)
        inbox = server.step(t, 0, uploads) if server else {}
    assert min(all_norms) < 0.5 < max(all_norms)  # steps of both kinds


@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize("method", METHODS)
def test_the_norm_of_a_step_is_bounded_for_every_method(tiny, tmp_path, method, fusion):
    one_step = {"epochs": 1, "batch_size": 1000, "track_gradients": True, "method": method, "fusion": fusion}

    def norms(clip):
        server, clients = federation(tiny(clip=clip, **one_step), tmp_path)
        first = dict(server.first_message()) if server else {}
        for client in clients:
            client.begin(first)
            client.update(1, 0, first)
        return torch.tensor([client.gradient_norm2 for client in clients]).sqrt()

    free = norms(0.0)
    bound = free.median().item()
    torch.testing.assert_close(norms(bound), free.clamp(max=bound), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(norms(1e9), free, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_bound_that_is_never_reached_changes_no_bit(finished, method):
    free, bounded = finished(method=method, clip=0.0), finished(method=method, clip=1e9)
    assert bounded.final["client_sha256"] == free.final["client_sha256"]
    assert bounded.final["server_sha256"] == free.final["server_sha256"]


@pytest.mark.parametrize("manual", [True, False])
def test_scaled_gradients_have_the_scaled_norm(tiny, tmp_path, manual):
    """On a GPU gradients are scaled by a tensor."""
    _, (client, *_) = federation(tiny(method="local"), tmp_path)
    losses, norms = [], []

    def keep(epoch):
        def cross_entropy(number, rows, Z):
            loss = F.cross_entropy(client.model.classifier(Z.sum(0)), epoch.y[rows])
            return loss, [loss]

        losses.append(HeadLoss(client, epoch) if manual else AutogradLoss(client, cross_entropy))
        return losses[-1]

    client.train(1, keep)
    with torch.no_grad():
        for factor in (1.0, 0.5):
            leaves = [leaf for leaf, _ in losses[-1].leaves()]
            for leaf in leaves:
                leaf.scale(torch.tensor(factor))
            norms.append(JointNorm(leaves).norm2().item())
    assert norms[1] == pytest.approx(norms[0] / 4)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_fails_the_run_instead_of_skipping_the_step(tiny, tmp_path, value):
    _, (client, *_) = federation(tiny(method="local", clip=1.0), tmp_path)

    class Broken(HeadLoss):
        def on_logits(self, number, rows, logits, g):
            return g + (value if number == 1 else 0.0)

    with pytest.raises(RunError, match="not finite"):
        client.train(1, lambda epoch: Broken(client, epoch))
