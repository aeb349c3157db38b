"""FedPall's server: prototypes, and the training of both networks compared with torch.optim."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mfedpba_mpi.methods import fedpall
from tests.methods.fedpall.parts import TWO, assert_close, discriminator_message, play, random_discriminator
from tests.methods.hand import Data


def test_prototypes_of_separate_features_count_items(make_federation):
    federation = make_federation("fedpall", TWO, 2, fusion="separate", fedpall={"keep": 1, "mix_low": 1})
    inbox = {}
    means, mixed = play(federation, 1, inbox)
    sums, counts = np.zeros((3, 2)), np.zeros(3)
    for k, client in enumerate(TWO):
        for c in set(client.labels):
            members = [
                row for rows in client.values.values() for row, y in zip(rows, client.labels, strict=True) if y == c
            ]
            p = np.mean(members, axis=0)
            assert_close(means[k]["p"][c], p)
            sums[c] += len(members) * p / np.linalg.norm(p)
            counts[c] += len(members)
    assert_close(inbox["Pbar"][[0, 2]], (sums / counts.clip(1)[:, None])[[0, 2]])
    assert counts.tolist() == [7, 0, 4]
    assert_close(mixed[1]["V"], np.concatenate([TWO[1].values[0], TWO[1].values[1]]))  # g = 1: unmixed features
    assert mixed[1]["y"].tolist() == TWO[1].labels * 2


def test_server_training_equals_torch_sgd_with_momentum(make_federation, constant_generator):
    """Rounds with 16 vectors (D drops the last batch of one), 14 and 8; three epochs in batches of 5."""
    rng = np.random.default_rng(1)
    clients = [Data({0: rng.normal(size=(n, 4))}, rng.integers(0, 3, n)) for n in (8, 8, 6)]
    settings = {"disc_hidden": 6, "server_lr": 0.2, "weight_decay": 0.01}
    federation = make_federation("fedpall", clients, 1, d=4, fedpall=settings, batch_size=5)
    inbox = dict(federation.server.first_message())
    D, _ = random_discriminator(4, 6, 3)
    names = {"D_W1": D[0].weight, "D_W2": D[3].weight, "D_W3": D[6].weight}
    for i, norm in ((1, D[1]), (2, D[4])):
        names |= {f"D_gamma{i}": norm.weight, f"D_beta{i}": norm.bias, f"D_mean{i}": norm.running_mean}
        names[f"D_var{i}"] = norm.running_var
    h = nn.Linear(4, 3)
    with torch.no_grad():
        for name, value in (names | {"W": h.weight, "b": h.bias}).items():
            value.copy_(inbox[name])
    D.train()
    optimisers = [torch.optim.SGD(net.parameters(), 0.2, momentum=0.9, weight_decay=0.01) for net in (h, D)]
    for t, active in ((1, [0, 1]), (2, [0, 2]), (3, [1])):
        _, mixed = play(federation, t, inbox, active)
        V, y = (torch.cat([mixed[k][name] for k in active]) for name in ("V", "y"))
        owner = torch.tensor([k for k in active for _ in range(len(clients[k].labels))])
        cases = (h, optimisers[0], y.long(), 1, "ce"), (D, optimisers[1], owner, 4, "disc")
        for net, optimiser, target, min_batch, term in cases:
            losses = []
            for _ in range(3):
                for start in range(0, len(V), 5):
                    if len(V[start : start + 5]) >= min_batch:
                        loss = F.cross_entropy(net(V[start : start + 5]), target[start : start + 5])
                        optimiser.zero_grad()
                        loss.backward()
                        optimiser.step()
                        losses.append(loss.item())
            assert federation.server.record[f"server_{term}"] == pytest.approx(np.mean(losses), rel=1e-3)
        for name, value in (discriminator_message(D) | {"W": h.weight, "b": h.bias}).items():
            assert_close(inbox[name], value, 1e-3)


def test_every_draw_uses_a_separate_stream(make_federation, monkeypatch):
    keys, real = [], fedpall.generator
    monkeypatch.setattr(fedpall, "generator", lambda *key: keys.append(key) or real(*key))
    federation, inbox = make_federation("fedpall", TWO, 2), {}
    for t in (1, 2):
        play(federation, t, inbox)
    assert len(keys) == len(set(keys)) == 2 * (2 + 3 + 3)  # one mix per client, three shuffles each for h_G and D


def test_uploaded_prototypes_are_weighted_by_their_counts(make_federation, constant_generator):
    """A weighted batch of all class means equals the batch of all samples, each replaced by its class mean."""
    settings = {"upload": "prototypes", "server_epochs": 1, "server_lr": 0.1, "weight_decay": 0, "keep": 1}
    federation = make_federation("fedpall", TWO, 2, fedpall=settings)
    inbox = dict(federation.server.first_message())
    W, b = (inbox[name].clone().requires_grad_() for name in "Wb")
    means, mixed = play(federation, 1, inbox)
    V, y = [], []
    for k, client in enumerate(TWO):
        assert mixed[k].keys() == {"V"}
        for c in client.labels:
            assert_close(mixed[k]["V"][c], (means[k]["p"][c] + inbox["Pbar"][c]) / 2)
            V.append(mixed[k]["V"][c])
            y.append(c)
    loss = F.cross_entropy(torch.stack(V) @ W.T + b, torch.tensor(y))
    gradients = torch.autograd.grad(loss, [W, b])
    assert_close(inbox["W"], W - 0.1 * gradients[0])
    assert_close(inbox["b"], b - 0.1 * gradients[1])
    # the mean weight is 1: four class means of 1 + 2 + 3 + 1 samples
    assert federation.server.record["server_ce"] == pytest.approx(loss.item(), rel=1e-5)


def test_a_single_prototype_does_not_train_the_discriminator(make_federation):
    federation = make_federation(
        "fedpall", [Data({0: [(1, 2), (3, 1)]}, [2, 2]), TWO[0]], 2, fedpall={"upload": "prototypes"}
    )
    inbox = dict(federation.server.first_message())
    before = dict(inbox)
    play(federation, 1, inbox, [0])
    assert all(torch.equal(inbox[name], before[name]) for name in before if name.startswith("D_"))
    assert not torch.equal(inbox["W"], before["W"])
    assert inbox["Pbar_present"].tolist() == [0, 0, 1]


def test_the_state_dicts_are_complete(make_federation):
    """A federation restored from the state of another one continues identically."""
    one, other = (make_federation("fedpall", TWO, 2) for _ in range(2))
    inbox = {}
    for t in (1, 2):
        play(one, t, inbox)
    for name, value in other.server.state_dict().items():
        value.copy_(one.server.state_dict()[name])
    for client, source in zip(other.clients, one.clients, strict=True):
        client.model.load_state_dict(source.model.state_dict())
    other_inbox = dict(inbox)
    play(one, 3, inbox)
    play(other, 3, other_inbox)
    assert all(torch.equal(inbox[name], other_inbox[name]) for name in inbox)
    for name, value in one.server.state_dict().items():
        assert torch.equal(value, other.server.state_dict()[name]), name
