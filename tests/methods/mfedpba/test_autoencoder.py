"""The server's autoencoder and the batching of uploads."""

import pytest
import torch
import torch.nn.functional as F

from mfedpba_mpi.methods.mfedpba.autoencoder import PrototypeAutoencoder, PrototypeBatch

M, C, D = 3, 5, 8


def autoencoder(seed=0):
    return PrototypeAutoencoder(M, D, torch.Generator().manual_seed(seed))


def uploads(seed=0, clients=4):
    """Random uploads of clients with one or two of the modalities 0 and 2 and some classes; modality 1 is absent."""
    generator = torch.Generator().manual_seed(seed)
    owned = [[0], [0, 2], [2], [0, 2]][:clients]
    result = []
    for modalities in owned:
        present = torch.rand(C, generator=generator) < 0.6
        present[0], present[4] = True, False
        result += [(m, torch.randn(C, D, generator=generator), present) for m in modalities]
    return result


def test_forward_equals_a_loop_of_linear_layers():
    model, E = autoencoder(), torch.randn(M, 7, D, generator=torch.Generator().manual_seed(1))
    P = model(E)
    for m in range(M):
        hidden = F.linear(E[m], model.encoder_weight[m].T, model.encoder_bias[m, 0]).relu()
        torch.testing.assert_close(P[m], F.linear(hidden, model.decoder_weight.T, model.decoder_bias))


def test_initial_weights_use_the_given_generator_and_the_range_of_linear_layers():
    before = torch.get_rng_state()
    weights, again, other = (autoencoder(seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    for name, fan_in in dict(encoder_weight=D, encoder_bias=D, decoder_weight=D // 2, decoder_bias=D // 2).items():
        assert torch.equal(weights[name], again[name])
        assert not torch.equal(weights[name], other[name])
        assert 0.5 * fan_in**-0.5 < weights[name].abs().max() <= fan_in**-0.5


@pytest.mark.parametrize("d", [0, 7])
def test_an_odd_dimension_raises(d):
    with pytest.raises(ValueError, match=f"d = {d}"):
        PrototypeAutoencoder(M, d, torch.Generator())


def test_batching_keeps_the_client_order_and_averages_equal_a_loop():
    sent = uploads()
    batch = PrototypeBatch.from_uploads(sent, M)
    averages = batch.average(batch.E)
    for m in range(M):
        expected = [E[c] for modality, E, present in sent if modality == m for c in range(C) if present[c]]
        assert batch.rows[m].tolist() == [True] * len(expected) + [False] * (batch.rows.shape[1] - len(expected))
        assert torch.equal(batch.E[m], torch.stack([*expected, *torch.zeros(batch.E.shape[1] - len(expected), D)]))
        for c in range(C):
            rows = [E[c] for modality, E, present in sent if modality == m and present[c]]
            assert batch.present[m, c] == bool(rows)
            torch.testing.assert_close(averages[m, c], torch.stack(rows).mean(0) if rows else torch.zeros(D))
    assert not batch.present[1].any()
    assert not batch.present[:, 4].any()


def test_padding_does_not_affect_the_averages():
    batch, model = PrototypeBatch.from_uploads(uploads(), M), autoencoder()
    E = torch.where(batch.rows[..., None], batch.E, 100.0)
    torch.testing.assert_close(batch.average(model(E)), batch.average(model(batch.E)))


def test_a_round_without_uploads_raises():
    with pytest.raises(ValueError, match="no feature prototypes"):
        PrototypeBatch.from_uploads([], M)
