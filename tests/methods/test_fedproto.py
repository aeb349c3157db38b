"""FedProto, compared with calculations by hand, loops, and Local."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.methods.hand import CPU, Data

# Client 0 owns modalities 0 and 1; its fused features are (1, 1), (3, 1) of class 0 and (1, 3) of class 1.
# Client 1 owns modality 1 and has only class 0, six samples with mean (3, 4). No client has class 2.
TWO = [
    Data({0: [(1, 0), (3, 0), (0, 2)], 1: [(0, 1), (0, 1), (1, 1)]}, [0, 0, 1]),
    Data({1: [(4, 3), (2, 5), (3, 4), (3, 4), (1, 4), (5, 4)]}, [0] * 6),
]
C, d = 3, 2


def transmit(layout, message):
    flat = torch.empty(layout.size)
    layout.pack(message, flat)
    return layout.unpack(flat, CPU)


def one_round(federation, t, inboxes=({}, {})):
    """Play a round; return the uploads and the reply to each client."""
    method, clients, server = federation
    uploads = {k: transmit(method.upload(t, 0, k), client.update(t, 0, inboxes[k])) for k, client in enumerate(clients)}
    reply = server.step(t, 0, uploads)
    differ = method.replies_differ(t, 0)
    sent = [transmit(method.reply(t, 0, k), reply[k] if differ else reply) for k in range(len(clients))]
    return uploads, sent


@pytest.mark.parametrize("source", ["clean", "train"])
def test_a_round_by_hand(make_federation, source):
    """Features are constant here, so both sources of prototypes give the same result."""
    federation = make_federation("fedproto", TWO, modalities=2, fedproto={"proto_source": source})
    uploads, sent = one_round(federation, 1)
    assert [client.losses["proto"] for client in federation.clients] == [0, 0]  # no prototypes yet
    torch.testing.assert_close(uploads[0]["P"][:2], torch.tensor([[2.0, 1.0], [1.0, 3.0]]))
    torch.testing.assert_close(uploads[1]["P"][:1], torch.tensor([[3.0, 4.0]]))
    # Class 0: ((2, 1) + (3, 4)) / 2; class 1 is that of client 0.
    for inbox in sent:
        torch.testing.assert_close(inbox["P_G"][:2], torch.tensor([[2.5, 2.5], [1.0, 3.0]]))
        assert inbox["P_present"].tolist() == [1, 1, 0]
    one_round(federation, 2, sent)
    # Client 0: squares (2.25 + 2.25) + (0.25 + 2.25) + 0 = 7 over 3 samples x 2 features.
    # Client 1: 2.5 + 6.5 + 2.5 + 2.5 + 4.5 + 8.5 = 27 over 12.
    assert federation.clients[0].losses["proto"] == pytest.approx(7 / 6)
    assert federation.clients[1].losses["proto"] == pytest.approx(27 / 12)
    # Squared distances to (2.5, 2.5) and (1, 3): (1, 1) has 4.5 and 4 (misclassified); (3, 1) has 2.5 and 8; (1, 3)
    # has 0 to its own class.
    Z = torch.tensor([TWO[0].values[0], TWO[0].values[1]], dtype=torch.float32)
    assert federation.clients[0].predict(2, Z, sent[0])[0].tolist() == [[1, 0, 1]]
    assert federation.clients[0].evaluate(2, sent[0])[:2] == [3, 2]
    method = federation.method
    for k in range(2):
        assert method.upload(1, 0, k).payload_bytes == 4 * C * d
        assert method.reply(1, 0, k).payload_bytes == 4 * C * d
        assert method.upload(1, 0, k).wire_bytes == 4 * (C * d + (C if source == "train" else 0))
        assert method.reply(1, 0, k).wire_bytes == 4 * (C * d + C)
    assert method.first().size == 0


def test_clients_can_be_weighted_by_samples(make_federation):
    """Class 0: client 0 has two samples and client 1 six, so (2, 1) / 4 + 3 (3, 4) / 4 = (2.75, 3.25)."""
    _, sent = one_round(make_federation("fedproto", TWO, modalities=2, fedproto={"proto_weighting": "samples"}), 1)
    torch.testing.assert_close(sent[0]["P_G"][:2], torch.tensor([[2.75, 3.25], [1.0, 3.0]]))


def test_separate_by_hand(make_federation):
    """Items of client 0: class 0 (1, 0), (3, 0), (0, 1), (0, 1), mean (1, 0.5); class 1 (0, 2), (1, 1)."""
    options = {"proto_scope": "fused"}
    federation = make_federation("fedproto", TWO, modalities=2, fusion="separate", fedproto=options)
    uploads, sent = one_round(federation, 1)
    torch.testing.assert_close(uploads[0]["P"][:2], torch.tensor([[1.0, 0.5], [0.5, 1.5]]))
    torch.testing.assert_close(sent[0]["P_G"][:2], torch.tensor([[2.0, 2.25], [0.5, 1.5]]))
    one_round(federation, 2, sent)
    # To (2, 2.25): 6.0625 + 6.0625 + 5.5625 + 5.5625; to (0.5, 1.5): 0.5 + 0.5; 24.25 over 6 items x 2 features.
    assert federation.clients[0].losses["proto"] == pytest.approx(24.25 / 12)
    assert federation.clients[0].evaluate(2, sent[0])[0] == 6


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_prototypes_per_modality_by_hand(make_federation, fusion):
    federation = make_federation("fedproto", TWO, modalities=2, fusion=fusion, fedproto={"proto_scope": "modality"})
    _, sent = one_round(federation, 1)
    # Only client 0 owns modality 0: (2, 0) and (0, 2). Modality 1: ((0, 1) + (3, 4)) / 2 and (1, 1).
    first, second = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.5, 2.5], [1.0, 1.0]])
    torch.testing.assert_close(sent[0]["P_G"][:, :2], torch.stack([first, second]))
    torch.testing.assert_close(sent[1]["P_G"][:, :2], second[None])
    assert sent[0]["P_present"].tolist() == [[1, 1, 0], [1, 1, 0]]
    assert sent[1]["P_present"].tolist() == [[1, 1, 0]]
    one_round(federation, 2, sent)
    # Modality 0: 1 + 1 + 0 over 6; modality 1: 4.5 + 4.5 + 0 over 6; their mean is 11/12.
    assert federation.clients[0].losses["proto"] == pytest.approx(11 / 12)
    Z = torch.tensor([TWO[0].values[0], TWO[0].values[1]], dtype=torch.float32)
    guesses = federation.clients[0].predict(2, Z, sent[0])[0].tolist()
    # Squared distances to classes 0 and 1. Modality 0: (1, 5), (1, 13), (8, 0); modality 1: (4.5, 1) twice, (2.5, 0).
    assert guesses == ([[0, 0, 1]] if fusion == "sum" else [[0, 0, 1], [1, 1, 1]])
    for k, owned in enumerate((2, 1)):
        assert federation.method.upload(1, 0, k).payload_bytes == 4 * owned * C * d
        assert federation.method.reply(1, 0, k).payload_bytes == 4 * owned * C * d


def test_the_prototype_of_a_class_of_one_client_is_returned_exactly(make_federation):
    g = np.random.default_rng(3)
    lone = Data({0: g.normal(size=(5, d))}, [0, 0, 0, 1, 1])
    other = Data({0: g.normal(size=(4, d))}, [0, 0, 2, 2])
    for weighting in ("uniform", "samples"):
        federation = make_federation("fedproto", [lone, other], modalities=1, fedproto={"proto_weighting": weighting})
        uploads, sent = one_round(federation, 1)
        assert torch.equal(sent[0]["P_G"][1], uploads[0]["P"][1])
        assert torch.equal(sent[0]["P_G"][2], uploads[1]["P"][2])


def test_only_uploads_of_the_current_round_are_averaged(make_federation):
    method, clients, server = make_federation("fedproto", TWO, modalities=2)
    server.step(1, 0, {k: client.update(1, 0, {}) for k, client in enumerate(clients)})
    reply = server.step(2, 0, {1: clients[1].update(2, 0, {})})
    assert reply["P_present"].tolist() == [True, False, False]
    torch.testing.assert_close(reply["P_G"][0], torch.tensor([3.0, 4.0]))
    assert not server.state_dict()
    assert method.predicts_from_reply


def loop_loss(x, y, weights, head, P_G, present, fusion, scope, lam):
    """(CE, MSE, L) of one batch by loops in double precision; `weights` (d, d) are the linear extractors."""
    items, squares = [], []
    for i in range(len(y)):
        z = [x[m][i] @ weights[m].T for m in range(len(x))]
        fused = [sum(z)] if fusion == "sum" else z
        items += [(f, int(y[i])) for f in fused]
        for m, part in enumerate(z if scope == "modality" else fused):
            row = m if scope == "modality" else 0
            has_target = present[row][y[i]]
            squares += [(part[j] - P_G[row][y[i]][j]) ** 2 if has_target else part[j] * 0 for j in range(len(part))]
    ce = sum(torch.logsumexp(head[0] @ f + head[1], 0) - (head[0] @ f + head[1])[c] for f, c in items) / len(items)
    mse = sum(squares) / len(squares)
    return ce, mse, ce + lam * mse


@pytest.mark.parametrize("scope", ["fused", "modality"])
@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_a_step_equals_the_loops(make_federation, fusion, scope):
    """Linear extractors, one batch; class 2 has no prototype, and class 1 has none in modality 1."""
    g = torch.Generator().manual_seed(5)
    y, lam, lr = [0, 1, 2, 2, 1, 0, 1], 3.0, 0.1
    x = torch.randn(2, len(y), d, generator=g)
    client = Data({m: x[m].tolist() for m in range(2)}, y)
    settings = {"fedproto": {"lam": lam, "proto_scope": scope}, "fusion": fusion, "lr": lr}
    one = make_federation("fedproto", [client], modalities=2, **settings).clients[0]
    one.model.extractors = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(2))
    with torch.no_grad():
        for layer in one.model.extractors:
            layer.weight.copy_(torch.randn(d, d, generator=g))
    P_G = torch.randn(2, C, d, generator=g)
    present = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    if scope == "fused":
        P_G, present = P_G[:1], present[:1]
    weights = [layer.weight.detach().double().requires_grad_() for layer in one.model.extractors]
    head = [p.detach().double().requires_grad_() for p in one.model.classifier.parameters()]
    ce, mse, total = loop_loss(x.double(), y, weights, head, P_G.double(), present, fusion, scope, lam)
    gradients = torch.autograd.grad(total, [*weights, *head])
    expected = [(p - lr * gradient).float() for p, gradient in zip([*weights, *head], gradients, strict=True)]
    # The values for absent classes are ignored.
    inbox = {"P_G": P_G.masked_fill(present[..., None] == 0, torch.nan), "P_present": present}
    one.update(2, 0, {name: value[0] for name, value in inbox.items()} if scope == "fused" else inbox)
    assert one.losses["ce"] == pytest.approx(ce.item(), rel=1e-5)
    assert one.losses["proto"] == pytest.approx(mse.item(), rel=1e-5)
    for found, value in zip(one.model.parameters(), expected, strict=True):
        torch.testing.assert_close(found.detach(), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scope", ["fused", "modality"])
@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize("own", ["prototype", "classifier"])
def test_predictions_equal_the_loops(make_federation, fusion, scope, own):
    g = torch.Generator().manual_seed(6)
    settings = {"fusion": fusion, "fedproto": {"proto_scope": scope, "predict": own}}
    method, (client, _), _ = make_federation("fedproto", TWO, modalities=2, **settings)
    Z, P_G = torch.randn(2, 40, d, generator=g), torch.randn(2, C, d, generator=g)
    present = torch.tensor([[True, False, True], [True, True, True]])
    if scope == "fused":
        P_G, present = P_G[:1], present[:1]
    items = [Z.sum(0)] if fusion == "sum" else list(Z)
    expected = torch.zeros(len(items), 40, dtype=torch.int64)
    for n, item in enumerate(items):
        for i in range(40):
            distances = []
            for c in range(C):
                if scope == "fused":
                    pairs = [(item[i], 0)]
                else:
                    pairs = [(Z[m, i], m) for m in ((0, 1) if fusion == "sum" else (n,))]
                is_present = all(present[m, c] for _, m in pairs)
                distances.append(
                    sum(((z - P_G[m, c]) ** 2).mean().item() for z, m in pairs) if is_present else math.inf
                )
            expected[n, i] = distances.index(min(distances))
    inbox = {"P_G": P_G, "P_present": present.float()}
    if scope == "fused":
        inbox = {name: value[0] for name, value in inbox.items()}
    guesses = dict(zip(method.predictors, client.predict(1, Z, inbox), strict=True))
    assert method.predictors[0] == own
    assert set(guesses) == {"prototype", "classifier"}
    assert torch.equal(guesses["prototype"], expected)
    assert torch.equal(guesses["classifier"], client.model.logits(Z).argmax(-1))
    for guess in client.predict(1, Z, {}):  # nothing received yet
        assert torch.equal(guess, guesses["classifier"])


@pytest.mark.parametrize("scope", ["fused", "modality"])
@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_prototypes_from_training_are_means_over_all_steps(make_federation, fusion, scope):
    g = np.random.default_rng(7)
    y = [0, 1, 1, 0, 1, 0, 0]
    data = Data({m: g.normal(size=(7, d)) for m in range(2)}, y)
    settings = {"fusion": fusion, "epochs": 3, "batch_size": 3, "lr": 0.5}
    options = {"proto_source": "train", "proto_scope": scope}
    client = make_federation("fedproto", [data], modalities=2, fedproto=options, **settings).clients[0]
    seen, labels, epoch = ([], []), [], client.epoch

    class RecordingLinear(nn.Linear):
        """Records its outputs on training rows, before the update of the step."""

        def forward(self, x):
            z = super().forward(x)
            seen[self.m].extend(z.detach().clone())
            return z

    def record_labels(t, number):
        found = epoch(t, number)
        labels.extend(found.y.tolist())
        return found

    client.model.extractors = nn.ModuleList(RecordingLinear(d, d) for _ in range(2))
    client.model.extractors[0].m, client.model.extractors[1].m = 0, 1
    client.epoch = record_labels
    upload = client.update(1, 0, {})
    assert len(labels) == 21
    seen = [torch.stack(pair) for pair in zip(*seen, strict=True)][:21]
    for c in range(2):
        mean = sum(z for z, label in zip(seen, labels, strict=True) if label == c) / labels.count(c)  # (2, d)
        if scope == "fused":
            mean = mean.sum(0) if fusion == "sum" else mean.mean(0)
        torch.testing.assert_close(upload["P"][..., c, :], mean)
    assert upload["seen"].tolist() == [True, True, False]


def test_a_class_without_a_training_step_is_absent(make_federation):
    """Three samples in batches of two: with BatchNorm the last batch of one sample is dropped, and with it a class."""
    data = Data({0: [(1, 1), (2, 2), (3, 3)]}, [0, 1, 2])
    federation = make_federation("fedproto", [data], modalities=1, batch_size=2, fedproto={"proto_source": "train"})
    federation.clients[0].model.has_batchnorm = True
    uploads, sent = one_round(federation, 1, [{}])
    assert uploads[0]["seen"].sum() == 2
    assert torch.equal(sent[0]["P_present"], uploads[0]["seen"])
    for c in range(3):
        if uploads[0]["seen"][c]:
            assert sent[0]["P_G"][c].tolist() == [c + 1, c + 1]


@pytest.mark.parametrize(("fusion", "source"), [("sum", "clean"), ("separate", "clean"), ("sum", "train")])
def test_with_lambda_zero_it_equals_local(finished, fusion, source):
    local = finished(method="local", fusion=fusion)
    off = finished(fedproto={"lam": 0, "predict": "classifier", "proto_source": source}, fusion=fusion)
    assert local.final["client_sha256"] == off.final["client_sha256"]
    np.testing.assert_array_equal(local.rounds["correct"], off.rounds["correct"])


@pytest.mark.parametrize(
    ("fusion", "scope", "expected"),
    [
        ("sum", None, "fused"), ("separate", None, "modality"), ("sum", "modality", "modality"),
        ("separate", "fused", "fused"),
    ],
)  # fmt: skip
def test_a_run(finished, fusion, scope, expected):
    run = finished(fusion=fusion, partition="m1+", fedproto={"proto_scope": scope})
    assert run.attributes["config"]["fedproto"]["proto_scope"] == expected
    rounds, owned = run.rounds, run.partition["modalities"].sum(axis=1)
    floats = 3 * 8 * (owned if expected == "modality" else 1)
    assert (rounds["bytes_up"] == 4 * floats).all()
    assert (rounds["bytes_down"] == 4 * floats).all()
    assert (rounds["loss_proto"][0] == 0).all()
    assert (rounds["loss_proto"][1:] > 0).all()
    assert np.isfinite(rounds["loss_proto"]).all()
    np.testing.assert_array_equal(rounds["accuracy"], rounds["accuracy_prototype"])
    assert np.isfinite(rounds["accuracy_classifier"]).all()


@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize("options", [{}, {"proto_scope": "modality", "proto_source": "train"}], ids=["usual", "other"])
def test_absent_classes_and_single_participants(finished, fusion, options):
    """Some clients have fewer samples than a batch or only one class; one participant per round."""
    changes = dict(clients=14, alpha=0.05, participation=0.07, rounds=4, families="DNN,Resmodel")
    run = finished(fedproto=options, fusion=fusion, **changes)
    counts, participated = run.partition["counts"], run.rounds["participants"]
    assert (participated.sum(axis=1) == 1).all()
    assert (counts.sum(axis=1) < 12).any()
    assert ((counts > 0).sum(axis=1) == 1).any()
    assert np.isfinite(run.rounds["loss_proto"][participated]).all()
    assert np.isfinite(run.rounds["accuracy"]).all()
    if not options and fusion == "sum":  # a broadcast
        last = np.flatnonzero(participated[-1])[0]
        np.testing.assert_array_equal(run.final["P_present"], counts[last] > 0)


def test_a_participant_receives_replies_of_rounds_it_missed(finished):
    """Fused prototypes are broadcast to all clients: after round 1 every participant trains with them."""
    rounds = finished(clients=4, participation=0.5, rounds=6).rounds
    assert (rounds["loss_proto"][1:][rounds["participants"][1:]] > 0).all()
