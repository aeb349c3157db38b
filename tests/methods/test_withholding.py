"""`min_class_samples`: what a client has too few samples of stays with it, in every method that sends prototypes."""

import pytest
import torch

from mfedpba_mpi.errors import UserError
from tests.methods.hand import Data

# Of class 0 client 0 has two samples and client 1 three, of class 1 client 0 has one; nobody has class 2.
TWO = [
    Data({0: [(1, 0), (3, 0), (0, 2)]}, [0, 0, 1]),
    Data({0: [(4, 3), (2, 5), (3, 4)]}, [0, 0, 0]),
]
FEDPROTO = [{}, {"proto_source": "train"}, {"proto_weighting": "samples"}, {"proto_scope": "modality"}]
CASES = [("mfedpba", {}), ("fedtgp", {}), *(("fedproto", options) for options in FEDPROTO)]


def built(by_hand, method, options, least):
    return by_hand(method, TWO, modalities=1, **{method: {**options, "min_class_samples": least}})


def one_round(federation):
    uploads = {k: client.update(1, 0, {}) for k, client in enumerate(federation.clients)}
    reply = federation.server.step(1, 0, uploads)
    return uploads, reply.get(0, reply)


def rows_of(upload, c):
    """All numbers that an upload has of class c, one row for each of its prototypes."""
    return torch.cat([upload[name][..., c, :].flatten() for name in ("E", "I", "P") if name in upload])


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize("least", [1, 2, 3])
def test_numbers_of_a_class_with_too_few_samples_do_not_leave_the_client(by_hand, method, options, least):
    uploads, _ = one_round(built(by_hand, method, options, least))
    for k, c, samples in ((0, 0, 2), (0, 1, 1), (1, 0, 3)):
        assert bool(rows_of(uploads[k], c).any()) == (samples >= least)


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize(("least", "present"), [(1, [1, 1, 0]), (2, [1, 0, 0])])
def test_the_server_takes_what_is_withheld_as_absent(by_hand, method, options, least, present):
    _, reply = one_round(built(by_hand, method, options, least))
    for name in ("P_present", "I_present"):
        assert reply.get(name, torch.tensor(present)).flatten().tolist() == present


@pytest.mark.parametrize("options", FEDPROTO)
def test_a_mean_is_of_those_who_share(by_hand, options):
    """Class 0 is (2, 0) of client 0 and (3, 4) of client 1; at three samples it is client 1's alone."""
    _, reply = one_round(built(by_hand, "fedproto", options, 3))
    torch.testing.assert_close(reply["P_G"].reshape(3, 2)[0], torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize(("method", "options"), CASES)
def test_a_round_in_which_nobody_shares_goes_on(by_hand, method, options):
    """Client 0 is alone in the round and keeps all to itself; it predicts by its classifier."""
    federation = built(by_hand, method, options, 3)
    reply = federation.server.step(1, 0, {0: federation.clients[0].update(1, 0, {})})
    inbox = reply.get(0, reply)
    assert not inbox["P_present"].any()
    federation.clients[0].update(2, 0, inbox)
    assert len(set(federation.clients[0].evaluate(2, inbox)[1:])) == 1


def test_a_run_in_which_nobody_ever_shares_is_refused(by_hand):
    with pytest.raises(UserError, match="min-class-samples: no client has 4 training samples of a class"):
        built(by_hand, "mfedpba", {}, 4)


def test_methods_without_prototypes_have_no_such_setting(by_hand):
    with pytest.raises(UserError, match="method harmony has no parameter 'min_class_samples'"):
        built(by_hand, "harmony", {}, 2)
