"""`min_class_samples`: clients withhold prototypes of classes with too few samples, in every prototype method."""

import pytest
import torch

from mfedpba_mpi.errors import UserError
from tests.methods.hand import Data

# Class 0: two samples in client 0, three in client 1. Class 1: one sample in client 0. Class 2: no samples.
TWO = [
    Data({0: [(1, 0), (3, 0), (0, 2)]}, [0, 0, 1]),
    Data({0: [(4, 3), (2, 5), (3, 4)]}, [0, 0, 0]),
]
FEDPROTO = [{}, {"proto_source": "train"}, {"proto_weighting": "samples"}, {"proto_scope": "modality"}]
CASES = [("mfedpba", {}), ("fedtgp", {}), *(("fedproto", options) for options in FEDPROTO)]


def built(make_federation, method, options, minimum):
    return make_federation(method, TWO, modalities=1, **{method: {**options, "min_class_samples": minimum}})


def one_round(federation):
    uploads = {k: client.update(1, 0, {}) for k, client in enumerate(federation.clients)}
    reply = federation.server.step(1, 0, uploads)
    return uploads, reply.get(0, reply)


def rows_of(upload, c):
    """All values of an upload that belong to class c, flattened."""
    return torch.cat([upload[name][..., c, :].flatten() for name in ("E", "I", "P") if name in upload])


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize("minimum", [1, 2, 3])
def test_prototypes_of_classes_with_too_few_samples_are_not_uploaded(make_federation, method, options, minimum):
    uploads, _ = one_round(built(make_federation, method, options, minimum))
    for k, c, samples in ((0, 0, 2), (0, 1, 1), (1, 0, 3)):
        assert bool(rows_of(uploads[k], c).any()) == (samples >= minimum)


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize(("minimum", "present"), [(1, [1, 1, 0]), (2, [1, 0, 0])])
def test_the_server_treats_withheld_prototypes_as_absent(make_federation, method, options, minimum, present):
    _, reply = one_round(built(make_federation, method, options, minimum))
    for name in ("P_present", "I_present"):
        assert reply.get(name, torch.tensor(present)).flatten().tolist() == present


@pytest.mark.parametrize("options", FEDPROTO)
def test_means_are_over_clients_that_upload_the_class(make_federation, options):
    """The prototype of class 0 is (2, 0) in client 0 and (3, 4) in client 1, which alone has three samples."""
    _, reply = one_round(built(make_federation, "fedproto", options, 3))
    torch.testing.assert_close(reply["P_G"].reshape(3, 2)[0], torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize(("method", "options"), CASES)
def test_a_round_without_any_uploaded_class(make_federation, method, options):
    """Client 0 is the only participant and withholds all prototypes; it predicts by its classifier."""
    federation = built(make_federation, method, options, 3)
    reply = federation.server.step(1, 0, {0: federation.clients[0].update(1, 0, {})})
    inbox = reply.get(0, reply)
    assert not inbox["P_present"].any()
    federation.clients[0].update(2, 0, inbox)
    assert len(set(federation.clients[0].evaluate(2, inbox)[1:])) == 1


def test_a_run_in_which_all_prototypes_are_withheld_raises(make_federation):
    with pytest.raises(UserError, match="min-class-samples: no client has 4 training samples of any class"):
        built(make_federation, "mfedpba", {}, 4)


def test_methods_without_prototypes_do_not_have_min_class_samples(make_federation):
    with pytest.raises(UserError, match="method harmony has no parameter 'min_class_samples'"):
        built(make_federation, "harmony", {}, 2)
