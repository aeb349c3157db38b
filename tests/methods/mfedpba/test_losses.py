"""The server's losses and the aggregation of logits, compared with loops."""

import math

import pytest
import torch

from mfedpba_mpi.methods.mfedpba.losses import aggregate_logits, contrastive_loss, reconstruction_loss

M, C, D, TAU = 3, 4, 6, 0.5
PRESENT = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def contrastive_by_loops(P_G, present, tau):
    def sim(u, v):
        return u @ v / (u.norm() * v.norm())

    total = torch.zeros(())
    for m in range(len(P_G)):
        for n in range(len(P_G)):
            both = [c for c in range(present.shape[1]) if present[m, c] and present[n, c]]
            if m != n:
                for c in both:
                    terms = torch.stack([(sim(P_G[m, c], P_G[n, k]) / tau).exp() for k in both])
                    total = total - ((sim(P_G[m, c], P_G[n, c]) / tau).exp() / terms.sum()).log()
    return total


def entropy(logits):
    return -sum(p * math.log(p) for p in logits.double().softmax(0).tolist())


def test_reconstruction_loss_sums_present_rows_over_the_number_of_clients():
    P, E, rows = torch.randn(M, 7, D), torch.randn(M, 7, D), torch.rand(M, 7) < 0.7
    expected = sum(float((P[m, r] - E[m, r]).norm() ** 2) for m in range(M) for r in range(7) if rows[m, r]) / 5
    torch.testing.assert_close(reconstruction_loss(P, E, rows, 5).item(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("present", [torch.ones(M, C, dtype=torch.bool), PRESENT], ids=["all", "some"])
def test_contrastive_loss_and_gradient_equal_the_loops(present):
    P_G = torch.randn(M, C, D, dtype=torch.float64, requires_grad=True)
    loss, expected = contrastive_loss(P_G, present, TAU), contrastive_by_loops(P_G, present, TAU)
    torch.testing.assert_close(loss, expected.double())
    torch.testing.assert_close(*(torch.autograd.grad(value, P_G)[0] for value in (loss, expected)))


def test_contrastive_loss_by_hand():
    """Two orthogonal prototypes, equal in both modalities: every term is log(1 + exp(-1/tau))."""
    P_G = torch.eye(2).expand(2, 2, 2)
    loss = contrastive_loss(P_G, torch.ones(2, 2, dtype=torch.bool), TAU)
    assert loss.item() == pytest.approx(4 * math.log(1 + math.exp(-2)), rel=1e-6)


@pytest.mark.parametrize("classes", [[[1, 1], [0, 0]], [[1, 0], [0, 1]], [[0, 0], [0, 0]]])
def test_contrastive_loss_is_zero_without_a_common_class(classes):
    P_G = torch.randn(2, 2, D, requires_grad=True)
    loss = contrastive_loss(P_G, torch.tensor(classes, dtype=torch.bool), TAU)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(P_G.grad, torch.zeros_like(P_G))


def test_contrastive_loss_ignores_absent_rows_and_has_finite_gradients_at_zero():
    P_G = torch.randn(M, C, D)
    other = torch.where(PRESENT[..., None], P_G, torch.randn(M, C, D))
    assert torch.equal(contrastive_loss(P_G, PRESENT, TAU), contrastive_loss(other, PRESENT, TAU))
    P_G[0, 0] = 0
    P_G.requires_grad_()
    contrastive_loss(P_G, PRESENT, TAU).backward()
    assert P_G.grad.isfinite().all()


def test_entropy_weights_equal_the_loops():
    I, present = 3 * torch.randn(5, C, C), torch.rand(5, C) < 0.6
    present[:, 0], present[:, 1] = True, False
    I_G, I_present, q = aggregate_logits(I, present)
    assert I_G.dtype == torch.float32
    assert I_present.tolist() == present.any(0).tolist()
    for c in range(C):
        weights = [present[k, c].item() / (entropy(I[k, c]) + 1e-8) for k in range(5)]
        expected = sum(w * I[k, c].double() for k, w in enumerate(weights)) / (sum(weights) or 1)
        torch.testing.assert_close(I_G[c].double(), expected, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(q[:, c], torch.tensor(weights).double() / (sum(weights) or 1))
    assert torch.equal(I_G[1], torch.zeros(C))


def test_means_of_the_losses_divide_by_the_number_of_terms():
    P, E, rows = torch.randn(M, 7, D), torch.randn(M, 7, D), torch.rand(M, 7) < 0.7
    squares = [(P[m, r] - E[m, r]).square().sum() for m in range(M) for r in range(7) if rows[m, r]]
    torch.testing.assert_close(reconstruction_loss(P, E, rows), torch.stack(squares).mean())
    P_G = torch.randn(M, C, D)
    terms = sum(int((PRESENT[m] & PRESENT[n]).sum()) for m in range(M) for n in range(M) if m != n)
    expected = contrastive_by_loops(P_G, PRESENT, TAU) / terms
    torch.testing.assert_close(contrastive_loss(P_G, PRESENT, TAU, mean=True), expected)
    assert contrastive_loss(P_G[:1], PRESENT[:1], TAU, mean=True).item() == 0


def test_bounded_weights_equal_the_loops_and_differ_by_at_most_two():
    I, present = torch.randn(5, C, C), torch.ones(5, C, dtype=torch.bool)
    I = 9 * torch.nn.functional.normalize(I - I.mean(-1, keepdim=True), dim=-1)  # norms that need no limit
    *_, q = aggregate_logits(I, present, "bounded")
    for c in range(C):
        weights = [1 / (entropy(I[k, c]) + math.log(C)) for k in range(5)]
        torch.testing.assert_close(q[:, c], torch.tensor(weights).double() / sum(weights))
    assert (q.amax(0) <= 2 * q.amin(0)).all()


def test_bounded_logits_deviate_from_their_mean_by_at_most_twice_the_median():
    """Client 2 is sure of class 1. Norms of deviations: 2 sqrt(2/3), 4 sqrt(2/3), and 60 sqrt(2/3), which becomes 8."""
    I = torch.zeros(4, 3, 3)
    I[0, 0], I[1, 0] = torch.tensor([[2.0, 0, 0], [5.0, 1, 1]])
    I[2, 0] = torch.tensor([0.0, 60, 0])
    I[3, 0] = 1e6  # absent
    present = torch.tensor([[True, False, False]] * 3 + [[False] * 3])
    limited = torch.tensor([20 - 8 / 3, 20 + 16 / 3, 20 - 8 / 3])  # mean 20, deviation 8 (-1/3, 2/3, -1/3)
    rows = [I[0, 0], I[1, 0], limited]
    weights = torch.tensor([1 / (entropy(row) + math.log(3)) for row in rows]).double()
    I_G, known, q = aggregate_logits(I, present, "bounded")
    torch.testing.assert_close(q[:3, 0], weights / weights.sum(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(I_G[0], (weights @ torch.stack(rows).double() / weights.sum()).float())
    assert known.tolist() == [True, False, False]
    assert torch.equal(aggregate_logits(torch.zeros(3, 3, 3), present[:3], "bounded")[0], torch.zeros(3, 3))


def test_correct_weights_leave_out_clients_that_predict_another_class():
    """Class 0: clients 0 and 1 predict it, client 2 predicts class 1, surely. Class 1: nobody predicts it."""
    I = torch.tensor([[[2.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [1.0, 0.0]], [[0.0, 50.0], [1.0, 0.0]]])
    _, known, q = aggregate_logits(I, torch.ones(3, 2, dtype=torch.bool), "correct")
    assert known.tolist() == [True, False]
    torch.testing.assert_close(q, torch.tensor([[1 / 2, 1 / 3], [1 / 2, 1 / 3], [0, 1 / 3]], dtype=torch.float64))


def weights_of(I, present, **options):
    """Weights q (K, C): a constant added to a client's logits changes no entropy, and I_G by the constant times q."""
    K = len(I)
    return torch.stack([
        aggregate_logits(I + 1000 * (torch.arange(K) == k)[:, None, None], present, **options)[0][:, 0]
        - aggregate_logits(I, present, **options)[0][:, 0]
        for k in range(K)
    ]) / 1000  # fmt: skip


def test_weights_sum_to_one_favour_confident_clients_and_ignore_absent_ones():
    I = torch.zeros(3, 2, 2)
    I[:, 0, 0] = torch.tensor([4.0, 1.0, 9.0])
    present = torch.tensor([[1, 1], [1, 0], [0, 0]], dtype=torch.bool)
    q = weights_of(I, present)
    torch.testing.assert_close(q.sum(0), torch.ones(2), rtol=0, atol=1e-4)
    assert q[0, 0] > q[1, 0] > 0
    torch.testing.assert_close(q[:, 1], torch.tensor([1.0, 0.0, 0.0]), rtol=0, atol=1e-4)
    assert abs(q[2, 0]) < 1e-4
    torch.testing.assert_close(
        weights_of(I, present, weights="equal")[:, 0], torch.tensor([0.5, 0.5, 0]), rtol=0, atol=1e-4
    )


def test_aggregated_logits_by_hand():
    """Entropies are log 2 and that of (3/4, 1/4); values of absent classes are ignored, even NaN."""
    I = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [math.nan, math.inf]])[:, None].expand(3, 2, 2)
    present = torch.tensor([[1, 1], [1, 0], [0, 0]], dtype=torch.bool)
    H = [math.log(2), 0.75 * math.log(4 / 3) + 0.25 * math.log(4)]
    q = (1 / H[1]) / (1 / H[0] + 1 / H[1])
    I_G, *_ = aggregate_logits(I, present)
    torch.testing.assert_close(I_G, torch.tensor([[q * math.log(3), 0.0], [0.0, 0.0]]))
    I_G, *_ = aggregate_logits(I, present, weights="equal")
    torch.testing.assert_close(I_G, torch.tensor([[math.log(3) / 2, 0.0], [0.0, 0.0]]))


def test_an_extremely_confident_client_dominates_the_class():
    I = torch.tensor([[[800.0, 0.0]], [[1.0, 0.0]]]).expand(2, 2, 2)
    I_G, *_ = aggregate_logits(I, torch.ones(2, 2, dtype=torch.bool))
    torch.testing.assert_close(I_G[0], torch.tensor([800.0, 0.0]), rtol=1e-6, atol=0)
