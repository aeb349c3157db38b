"""Harmony, compared with the reference loops: stages, clusters, participation, and a restored federation."""

import numpy as np
import pytest
import torch

from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.round import Federation
from tests.methods.harmony.loops import (
    OWNED,
    ReferenceClient,
    assert_close,
    head,
    linear_extractors,
    random_clients,
    run_reference,
)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(
    ("fusion", "options"),
    [
        ("sum", {}),
        ("separate", {}),
        ("sum", {"average": "weights"}),
        ("sum", {"fusion_init": "random"}),
        ("sum", {"stage2_clients": "multimodal"}),
        ("separate", {"stage2_clients": "multimodal", "fusion_init": "random", "average": "weights"}),
    ],
)
def test_the_method_equals_the_reference(make_federation, fusion, options, participation):
    T, T1, lr, epochs, G = 8, 3, 0.2, 2, 2
    data = random_clients()
    settings = {"stage1_rounds": T1, "encoder_lr_factor": 0.5, "clusters": G, **options}
    method, clients, server = make_federation(
        "harmony", data, 3, classes=4, fusion=fusion, lr=lr, epochs=epochs, batch_size=16, rounds=T,
        participation=participation, harmony=settings,
    )  # fmt: skip
    linear_extractors(clients, seed=3)
    start = server.first_message()["start"].double()
    references = [ReferenceClient(k, data[k], client, start) for k, client in enumerate(clients)]
    comm = SerialComm()
    comm.place([1.0] * len(clients))
    federation = Federation(method.problem.config, comm, method, dict(enumerate(clients)), server)
    results = [federation.round(t)[0].values for t in range(1, T + 1)]
    scores = run_reference(references, federation.participants, T, T1, fusion, lr, epochs, G, options)
    assert [result["correct"].tolist() for result in results] == scores
    for k, (client, reference) in enumerate(zip(clients, references, strict=True)):
        client._apply_reply(T + 1, federation.inbox[k])
        for extractor, a in zip(client.model.extractors, reference.theta, strict=True):
            assert_close(head(extractor), a, 2e-5)
        alone = options.get("stage2_clients") == "multimodal" and len(OWNED[k]) == 1
        if alone:
            assert_close(torch.cat([client.unimodal.weight[0], client.unimodal.bias[0][:, None]], 1).detach(),
                 reference.heads[0], 2e-5)  # fmt: skip
        else:
            assert_close(head(client.model.classifier), reference.h, 2e-5)
    assert np.isfinite([result["loss_ce"][result["participants"]].sum() for result in results]).all()


def test_a_restored_federation_continues_identically(make_federation):
    """The state consists of the clients' models, the inboxes and the server's state (empty here)."""

    def start():
        built = make_federation(
            "harmony", random_clients(), 3, classes=4, rounds=8, batch_size=4, participation=0.5,
            harmony={"stage1_rounds": 3},
        )  # fmt: skip
        linear_extractors(built.clients, seed=3)
        for client in built.clients:  # buffers must match the new extractors
            client.model.theta_init = torch.cat(client._theta())
        comm = SerialComm()
        comm.place([1.0] * 6)
        return Federation(built.method.problem.config, comm, built.method, dict(enumerate(built.clients)), built.server)

    uninterrupted = start()
    for t in range(1, 9):
        uninterrupted.round(t)
    for stop in (2, 3, 4, 6):
        first, second = start(), start()
        for t in range(1, stop + 1):
            first.round(t)
        for k, client in second.clients.items():
            client.model.load_state_dict(first.clients[k].model.state_dict())
        second.inbox, second.last_broadcast = first.inbox, first.last_broadcast
        for t in range(stop + 1, 9):
            second.round(t)
        for k, client in second.clients.items():
            for name, value in uninterrupted.clients[k].model.state_dict().items():
                assert torch.equal(value, client.model.state_dict()[name]), (stop, k, name)


def test_with_one_cluster_and_equal_heads_updates_are_averaged(make_federation):
    data = random_clients()
    settings = {"stage1_rounds": 1, "clusters": 1, "fusion_init": "random"}
    _, clients, server = make_federation(
        "harmony", data, 3, classes=4, rounds=3, batch_size=16, lr=0.3, harmony=settings
    )
    linear_extractors(clients, seed=3)
    inbox = server.first_message()
    uploads = {k: client.update(2, 0, inbox) for k, client in enumerate(clients)}
    trained = [head(client.model.classifier) for client in clients]
    replies = server.step(2, 0, uploads)
    for k, client in enumerate(clients):
        client.predict(3, torch.zeros(len(OWNED[k]), 1, 2), {**inbox, **replies[k]})
        assert_close(head(client.model.classifier), sum(trained) / len(trained))
