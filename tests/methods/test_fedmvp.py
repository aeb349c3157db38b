"""FedMVP, compared with a round calculated by hand and loops over samples, with absent classes and modalities."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from mfedpba_mpi.errors import RunError
from mfedpba_mpi.methods.fedmvp import alignment_loss, cka
from tests.methods.hand import Data

M, C, d = 3, 4, 5
OWNED = [(1,), (0, 2), (0, 1, 2)]  # the last client has all modalities


# A round by hand


def test_a_round_by_hand(make_federation):
    """Client 0 has one of two modalities, no client has class 2; lr = 1, one batch, P1 = P2 = 0, A = 1, tau = 1."""
    clients = [
        Data({0: [[1, 0], [0, 1]]}, [0, 1]),
        Data({0: [[1, 0], [0, 2]], 1: [[1, 0], [0, -1]]}, [0, 1]),
    ]
    parameters = {"alpha": 0.01, "beta": 0.5, "temperature": 1.0, "probes": 3}
    method, (first, second), server = make_federation(
        "fedmvp", clients, modalities=2, lr=1.0, fusion="sum", fedmvp=parameters
    )
    for client in (first, second):
        for p in client.joint.parameters():
            nn.init.zeros_(p)
        nn.init.eye_(client.A.weight)
        nn.init.zeros_(client.A.bias)
    L = math.log(2)
    h_G = {"W": torch.tensor([[L, 0], [0, L], [0, -L]]), "b": torch.tensor([L, 0, 0])}

    # Client 0 adds a completion token; the bank is (1, 0), (0, 1), (0, -1).
    #   z = (1, 0): h_G(z) = (2L, 0, 0), pi = (4, 1, 1)/6,   bank's mean (4/6, 0)   -> r = (1, 0),    s = zJ = (2, 0)
    #   z = (0, 1): h_G(z) = (L, L, -L), pi = (4, 4, 1)/9,   bank's mean (4/9, 3/9) -> r = (0.8, 0.6), s = (0.8, 1.6)
    # o = (3L, 0, 0) and (1.8L, 1.6L, -1.6L), so p = (0.8, 0.1, 0.1) and (0.508833, 0.442965, 0.048203).
    # CE = (-ln 0.8 - ln 0.442965)/2 = 0.518705; of z alone (-ln 4/6 - ln 4/9)/2 = 0.608198, not better: L_RAM = 0.
    # p - y = (-0.2, 0.1, 0.1) and (0.508833, -0.557035, 0.048203); dW = mean of (p - y) zJ^T, db = mean of (p - y).
    h_0 = first.update(1, 0, h_G)
    W_0 = [[L - 0.003533, -0.407066], [0.122814, L + 0.445628], [-0.119281, -L - 0.038562]]
    np.testing.assert_allclose(h_0["W"], W_0, atol=2e-6)
    np.testing.assert_allclose(h_0["b"], [L - 0.154416, 0.228518, -0.074101], atol=2e-6)
    assert first.losses["ce"] == pytest.approx(0.518705, abs=2e-6)
    assert first.losses["ram"] == 0

    # Client 1 has all modalities: zJ = (2, 0) and (0, 1), o = (3L, 0, 0) and (L, L, -L), so p = (8, 1, 1)/10 and
    # (4, 4, 1)/9. CE = (-ln 0.8 - ln 4/9)/2 = 0.517037. Modality 0 alone: p_y = 4/6 and 16/25, CE = 0.425876, better:
    # but z^0 and zJ have the same directions: L_RAM = 0. Modality 1 alone: p_y = 4/6 and 1/9, worse.
    # Contrast with modality 0: qJ = q = (1, 0), (0, 1), each anchor e/(e + 1 + 1); with modality 1: q = (1, 0),
    # (0, -1), two anchors as before and two with 1/e / (1/e + 1 + 1).
    h_1 = second.update(1, 0, h_G)
    W_1 = [[L + 0.2, -2 / 9], [-0.1, L + 5 / 18], [-0.1, -L - 1 / 18]]
    np.testing.assert_allclose(h_1["W"], W_1, atol=2e-6)
    np.testing.assert_allclose(h_1["b"], [L - 11 / 90, 41 / 180, -19 / 180], atol=2e-6)
    near, far = math.log(math.e + 2) - 1, math.log(1 / math.e + 2) + 1
    assert second.losses["ce"] == pytest.approx(0.517037, abs=2e-6)
    assert second.losses["mcm"] == pytest.approx(near + (near + far) / 2, rel=1e-6)
    assert second.losses["ram"] == pytest.approx(0, abs=1e-6)

    # Two rows of a symmetric 2 x 2 matrix with equal diagonal have the same sum: each classifier has the weight 1/2.
    server.X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    reply = server.step(1, 0, {0: h_0, 1: h_1})
    W_G = [[0.791381, -0.314644], [0.011407, 1.054850], [-0.109641, -0.740206]]
    np.testing.assert_allclose(reply["W"], W_G, atol=2e-6)
    np.testing.assert_allclose(reply["b"], [0.554828, 0.228148, -0.089829], atol=2e-6)
    # Outputs on the probes, rows of length 1, columns centred:
    #   H_0 = (0.8713, -0.2907, -0.0105), (0.0034, 0.2960, -0.3668), (-0.8747, -0.0053, 0.3773)
    #   H_1 = (0.8146, -0.4444,  0.0999), (0.0585, 0.2619, -0.3263), (-0.8730,  0.1825, 0.2264)
    # CKA = 0.997210, the mean over all four pairs is 0.998605.
    assert server.record["server_cka"] == pytest.approx(0.998605, abs=2e-6)

    P_h = 3 * 2 + 3
    assert [method.upload(1, 0, k).payload_bytes for k in range(2)] == [4 * P_h] * 2
    assert [method.reply(t, 0, 0).payload_bytes for t in (0, 1)] == [4 * P_h] * 2


# The client


def reference_tokens(z_own, h_G, missing):
    """Tokens of one sample from its features, a list of d-vectors."""
    if not missing:
        return z_own
    W, b = h_G
    ztilde = sum(z_own).detach()
    scores = [torch.exp(W[c] @ ztilde + b[c]) for c in range(C)]
    r = sum(score / sum(scores) * W[c] / W[c].norm() for c, score in enumerate(scores))
    return [*z_own, r / r.norm() * ztilde.norm() / len(z_own)]


def joint_of(tokens, w):
    s = sum(tokens)
    return s + w["joint.P2.weight"] @ torch.relu(w["joint.P1.weight"] @ s + w["joint.P1.bias"]) + w["joint.P2.bias"]


def reference_ce(features, y, w):
    logits = [w["classifier.weight"] @ z + w["classifier.bias"] for z in features]
    return -sum(torch.log_softmax(o, 0)[c] for o, c in zip(logits, y, strict=True)) / len(y)


def reference_loss(Z, y, w, h_G, missing, alpha, beta, tau):
    """[CE, MCM, RAM] of features Z[m][i], sample by sample; the tokens of a sample are fused by their sum."""
    B = len(y)
    tokens = [reference_tokens([Z[m][i] for m in range(len(Z))], h_G, missing) for i in range(B)]
    zJ = [joint_of(tokens[i], w) for i in range(B)]
    ce = reference_ce(zJ, y, w)
    mcm = ram = torch.tensor(0.0)

    def unit(z):
        return z / z.norm()

    if alpha:

        def project(t):
            return unit(w["A.weight"] @ t + w["A.bias"])

        anchors_total = 0.0
        for token in range(len(tokens[0])):
            vectors = [project(z) for z in zJ] + [project(tokens[i][token]) for i in range(B)]
            for u in range(2 * B):
                positive = torch.exp(vectors[u] @ vectors[(u + B) % (2 * B)] / tau)
                rest = sum(torch.exp(vectors[u] @ vectors[v] / tau) for v in range(2 * B) if v != u)
                anchors_total = anchors_total - torch.log(positive / rest)
        mcm = anchors_total / (2 * B)
    if beta:
        for m in range(len(Z)):
            if reference_ce(Z[m], y, w) < ce:
                squares = sum(((unit(zJ[i]) - unit(Z[m][i].detach())) ** 2).sum() for i in range(B))
                ram = ram + torch.sqrt(squares + 1e-12) / B
    return torch.stack([ce, mcm, ram])


def features_of(rows, w):
    """Features Z[m][i] of rows[m][i] by linear extractors."""
    return [
        [w[f"extractors.{j}.weight"] @ x + w[f"extractors.{j}.bias"] for x in torch.tensor(x_m, dtype=torch.float64)]
        for j, x_m in enumerate(rows)
    ]


@pytest.fixture
def one_client(make_federation):
    """A function that creates a client with linear extractors; returns (client, rows[m][i], labels, random h_G)."""

    def make(owned, n=6, labels=(0, 2, 2, 1, 0, 1), fusion="sum", **settings):
        rng = np.random.default_rng(3)
        rows = {m: rng.normal(size=(n, d)).tolist() for m in owned}
        given = {"lr": 0.5, "fusion": fusion} | settings
        client = make_federation("fedmvp", [Data(rows, list(labels[:n]))], M, classes=C, d=d, **given).clients[0]
        torch.manual_seed(4)
        client.model.extractors = nn.ModuleList(nn.Linear(d, d) for _ in owned)
        h_G = {"W": torch.randn(C, d), "b": torch.randn(C)}
        return client, list(rows.values()), list(labels[:n]), h_G

    return make


@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize("owned", OWNED)
@pytest.mark.parametrize(
    "parameters",
    [
        {"alpha": 0.3, "beta": 0.7, "temperature": 0.5},
        {"alpha": 0.0, "beta": 2.0},
        {"alpha": 1.0, "beta": 0.0, "completion": False},
        {"alpha": 0.0, "beta": 0.0, "completion": False},
    ],
    ids=["full", "ram", "mcm without completion", "ce"],
)
def test_a_step_equals_the_reference(one_client, owned, fusion, parameters):
    """Six samples are less than a batch of twelve: the losses and new weights of one step are compared."""
    client, rows, y, h_G = one_client(owned, fusion=fusion, fedmvp=parameters)
    alpha, beta, tau = parameters["alpha"], parameters["beta"], parameters.get("temperature", 0.1)
    w = {name: p.detach().double().clone() for name, p in client.model.named_parameters()}
    w |= {"classifier.weight": h_G["W"].double().clone(), "classifier.bias": h_G["b"].double().clone()}
    for p in w.values():
        p.requires_grad_()
    bank = (h_G["W"].double(), h_G["b"].double())
    missing = len(owned) < M and parameters.get("completion", True)
    Z = features_of(rows, w)
    parts = [Z] if fusion == "sum" else [[Z_m] for Z_m in Z]
    terms = sum(reference_loss(part, y, w, bank, missing, alpha, beta, tau) for part in parts) / len(parts)
    gradients = torch.autograd.grad(terms @ torch.tensor([1.0, alpha, beta], dtype=torch.float64), list(w.values()))

    client.update(1, 0, h_G)
    np.testing.assert_allclose([client.losses[term] for term in ("ce", "mcm", "ram")], terms.tolist(), rtol=1e-5)
    after = dict(client.model.named_parameters())
    assert after.keys() == w.keys()
    for (name, before), gradient in zip(w.items(), gradients, strict=True):
        np.testing.assert_allclose(
            after[name].detach(), (before - 0.5 * gradient).detach(), rtol=1e-4, atol=2e-6, err_msg=name
        )


def test_the_reference_steps_cover_the_alignment_term(one_client):
    """The comparison above covers L_RAM: for some clients the bracket is 1."""
    found = []
    for owned in OWNED:
        for fusion in ("sum", "separate"):
            client, _, _, h_G = one_client(owned, fusion=fusion)
            client.update(1, 0, h_G)
            found.append(client.losses["ram"] > 0)
    assert any(found)


@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize("owned", OWNED)
def test_predictions_use_the_joint_feature_with_completion(one_client, owned, fusion):
    client, rows, _, h_G = one_client(owned, fusion=fusion)
    client.update(1, 0, h_G)
    w = {name: p.detach().double() for name, p in client.model.named_parameters()}
    Z = features_of(rows, w)
    expected = []
    for part in [Z] if fusion == "sum" else [[Z_m] for Z_m in Z]:
        for i in range(6):
            tokens = reference_tokens([z[i] for z in part], (h_G["W"].double(), h_G["b"].double()), len(owned) < M)
            logits = w["classifier.weight"] @ joint_of(tokens, w) + w["classifier.bias"]
            expected.append(logits.argmax().item())
    Z_float = torch.stack([torch.stack(Z_m) for Z_m in Z]).float()
    (found,) = client.predict(1, Z_float, h_G)
    assert found.shape == (1 if fusion == "sum" else len(owned), 6)
    assert found.flatten().tolist() == expected


def test_the_class_bank_is_the_received_classifier(one_client):
    client, _, _, h_G = one_client((1,))
    client.update(1, 0, h_G)
    Z = torch.randn(1, 64, d, generator=torch.Generator().manual_seed(0))
    other = {"W": -h_G["W"], "b": -h_G["b"]}
    assert not torch.equal(client.predict(1, Z, h_G)[0], client.predict(1, Z, other)[0])


def test_a_client_with_all_modalities_has_no_completion_token(one_client):
    assert not one_client(OWNED[2])[0].completes
    assert one_client(OWNED[1])[0].completes
    assert not one_client(OWNED[1], fedmvp={"completion": False})[0].completes


def test_a_round_starts_from_the_global_classifier(one_client):
    client, _, _, h_G = one_client((0, 2), lr=1e-12)
    h_k = client.update(1, 0, h_G)
    assert torch.equal(h_k["W"], h_G["W"])
    assert torch.equal(h_k["b"], h_G["b"])


def test_the_alignment_loss_by_hand():
    """Unit vectors: (0.6, 0.8) and (0, 1) against (1, 0) and (0, 1), so sqrt(0.16 + 0.64) / 2; lengths do not matter.

    The gradient is orthogonal to zJ, and smaller for a longer zJ.
    """
    own = torch.tensor([[[[5.0, 0.0], [0.0, 0.1]]]])
    for length in (1.0, 10.0):
        zJ = (length * torch.tensor([[[0.6, 0.8], [0.0, 1.0]]])).requires_grad_()
        loss = alignment_loss(zJ, own, torch.ones(1, 1))
        assert loss.item() == pytest.approx(math.sqrt(0.8) / 2, rel=1e-6)
        (gradient,) = torch.autograd.grad(loss, zJ)
        # (0.6, 0.8) - (1, 0) has the component 0.8 along (-0.8, 0.6), the direction orthogonal to zJ
        expected = torch.tensor([[[-0.8, 0.6], [0.0, 0.0]]]) * 0.8 / (2 * math.sqrt(0.8) * length)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_the_alignment_loss_has_a_gradient_at_distance_zero():
    zJ = torch.ones(1, 3, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(alignment_loss(zJ, torch.ones(2, 1, 3, 2), torch.ones(2, 1)), zJ)
    assert not gradient.any()


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_one_class_and_a_last_batch_of_one_sample(one_client, fusion):
    client, _, _, h_G = one_client((0, 2), n=5, labels=[3] * 5, fusion=fusion, batch_size=4)
    h_k = client.update(1, 0, h_G)
    assert all(value.isfinite().all() for value in h_k.values())
    assert all(math.isfinite(value) for value in client.losses.values())


def test_a_restored_client_continues_identically(one_client):
    original, _, _, h_G = one_client((0, 2))
    original.update(1, 0, h_G)
    resumed = one_client((0, 2), seed=7)[0]
    resumed.model.load_state_dict(original.model.state_dict())
    resumed.config = original.config
    a, b = original.update(2, 0, h_G), resumed.update(2, 0, h_G)
    assert torch.equal(a["W"], b["W"])
    assert original.losses == resumed.losses


def test_initial_weights_do_not_depend_on_the_global_generator(one_client):
    torch.manual_seed(0)
    a = one_client((1,))[0]
    torch.manual_seed(1)
    b = one_client((1,))[0]
    for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(p, q)


# The server


def reference_cka(A, B):
    """CKA of outputs A and B (Q, C) by definition."""
    grams = []
    for H in (np.asarray(A, float), np.asarray(B, float)):
        H = np.stack([row / np.sqrt((row**2).sum()) for row in H])
        H = H - H.mean(axis=0)
        grams.append(H @ H.T)
    F, G = grams
    return np.trace(F @ G) / math.sqrt(np.trace(F @ F) * np.trace(G @ G))


@pytest.fixture
def server(make_federation):
    return make_federation("fedmvp", [Data({0: [[0.0] * d] * 2}, [0, 1])], M, classes=C, d=d).server


def heads(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {2 * k: {"W": torch.randn(C, d, generator=g), "b": torch.randn(C, generator=g)} for k in range(n)}


def test_classifiers_are_weighted_by_cka(server):
    uploads = heads(4)
    uploads[8] = {name: value + 0.1 for name, value in uploads[2].items()}
    X = server.X.numpy().astype(float)
    assert X.shape == (256, d)
    H = [X @ h["W"].numpy().T + h["b"].numpy() for h in uploads.values()]
    CKA = np.array([[reference_cka(a, b) for b in H] for a in H])
    w = CKA.sum(axis=1) / CKA.sum()
    assert w.max() - w.min() > 0.01
    reply = server.step(1, 0, uploads)
    for name in ("W", "b"):
        expected = sum(w_k * h[name].numpy() for w_k, h in zip(w, uploads.values(), strict=True))
        np.testing.assert_allclose(reply[name], expected, rtol=1e-4, atol=1e-6)
    assert server.record["server_cka"] == pytest.approx(CKA.mean(), rel=1e-4)


def test_cka_is_symmetric_with_a_diagonal_of_ones():
    H = torch.randn(5, 40, C, generator=torch.Generator().manual_seed(0))
    H[4] = 1.0  # a classifier with constant outputs
    CKA = cka(H)
    np.testing.assert_allclose(CKA, CKA.T, atol=1e-6)
    assert (CKA.diagonal() == 1).all()
    assert ((CKA >= 0) & (CKA <= 1 + 1e-5)).all()


def test_cka_is_high_for_similar_classifiers_only():
    """With realistic dimensions: about 0.2 for unrelated classifiers, near 1 for a slightly perturbed copy."""
    g = torch.Generator().manual_seed(0)
    X, W = torch.randn(256, 48, generator=g), torch.randn(2, 10, 48, generator=g)
    W = torch.cat([W, W[:1] + 0.1 * torch.randn(1, 10, 48, generator=g)])
    CKA = cka(X @ W.mT)
    assert 0.1 < CKA[0, 1] < 0.3
    assert CKA[0, 2] > 0.95


def test_identical_classifiers_have_equal_weights(server):
    h = heads(1)[0]
    reply = server.step(1, 0, dict.fromkeys(range(5), h))
    np.testing.assert_allclose(reply["W"], h["W"], rtol=1e-5)
    scaled = {k: {"W": h["W"] * (k + 1), "b": h["b"] * (k + 1)} for k in range(3)}  # the same directions: CKA 1
    np.testing.assert_allclose(server.step(1, 0, scaled)["W"], 2 * h["W"], rtol=1e-5)


def test_a_single_classifier_is_returned_unchanged(server):
    h = heads(1)[0]
    reply = server.step(1, 0, {3: h})
    assert torch.equal(reply["W"], h["W"])
    assert torch.equal(reply["b"], h["b"])


def test_a_non_finite_cka_raises(server):
    huge = {k: {"W": torch.full((C, d), 3e38), "b": torch.zeros(C)} for k in range(2)}
    with pytest.raises(RunError, match="server, round 4: CKA of the classifiers is not finite"):
        server.step(4, 0, huge)


def test_aggregation_uses_cka_without_completion_and_extra_terms(make_federation):
    rng = np.random.default_rng(0)
    clients = [Data({0: rng.normal(size=(6, d)).tolist()}, [0, 1, 2, 0, 1, 2]) for _ in range(3)]
    off = {"alpha": 0.0, "beta": 0.0, "completion": False}
    _, built, server = make_federation("fedmvp", clients, M, classes=C, d=d, lr=0.5, fedmvp=off)
    uploads = {k: client.update(1, 0, server.first_message()) for k, client in enumerate(built)}
    assert all(client.losses["mcm"] == client.losses["ram"] == 0 for client in built)
    H = [server.X.numpy() @ h["W"].numpy().T + h["b"].numpy() for h in uploads.values()]
    w = np.array([sum(reference_cka(a, b) for b in H) for a in H])
    expected = sum(w_k * uploads[k]["W"].numpy() for k, w_k in enumerate(w / w.sum()))
    np.testing.assert_allclose(server.step(1, 0, uploads)["W"], expected, rtol=1e-4, atol=1e-6)


# Whole runs


@pytest.mark.parametrize("partition", ["m1+", "m2"])
@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_a_run(finished, fusion, partition):
    run = finished(fusion=fusion, partition=partition)
    for term in ("ce", "mcm", "ram"):
        assert np.isfinite(run.rounds[f"loss_{term}"]).all()
    assert ((run.rounds["server_cka"] > 0) & (run.rounds["server_cka"] <= 1 + 1e-5)).all()
    P_h = 3 * 8 + 3
    assert (run.rounds["bytes_up"] == 4 * P_h).all()
    assert (run.rounds["bytes_down"] == 4 * P_h).all()
    assert np.isfinite(run.final["W"]).all()


@pytest.mark.parametrize("fusion", ["sum", "separate"])
def test_clients_with_few_classes_and_one_participant_per_round(finished, fusion):
    run = finished(fusion=fusion, clients=14, alpha=0.05, participation=0.07, rounds=4)
    assert (run.rounds["participants"].sum(axis=1) == 1).all()
    counts = run.partition["counts"]
    assert (counts == 0).any()
    assert (counts.sum(axis=1) < 12).any()
    assert np.isfinite(run.rounds["loss_ce"][run.rounds["participants"]]).all()
    np.testing.assert_allclose(run.rounds["server_cka"], 1)


def test_training_is_better_than_chance(finished):
    run = finished(rounds=12, partition="m1+", samples=240, eval_every=12)
    assert run.rounds["correct"][-1].sum() / run.rounds["tested"][-1].sum() > 0.5  # of three classes
