"""One client of twenty uploads confident nonsense: what the others lose."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mfedpba_mpi import RunConfig, simulate
from mfedpba_mpi.comm.layout import Message
from mfedpba_mpi.methods.mfedpba import MFedPBAMethod
from mfedpba_mpi.methods.mfedpba.client import MFedPBAClient


class PoisonedClient(MFedPBAClient):
    """Client 0 says class 3 with large logits, whatever the class."""

    def update(self, t: int, phase: int, inbox: Message) -> Message:
        upload = super().update(t, phase, inbox)
        if self.k == 0:
            upload["I"] = 60 * torch.eye(self.problem.C)[3].expand(self.problem.C, self.problem.C).contiguous()
        return upload


def accuracy_of_the_others(weights: str, out: Path) -> float:
    config = RunConfig.of(
        dataset="synthetic", clients=20, samples=1600, dims=(32, 48), families=("DNN",), alpha=100.0, rounds=12,
        lr=0.05, clip=5.0, lambda_2=5.0, logit_weights=weights,
    )  # fmt: skip
    rounds = simulate(config, out=out).rounds
    return 100 * rounds["correct"][-1, 1:].sum() / rounds["tested"][-1, 1:].sum()


@pytest.mark.parametrize(("weights", "resists"), [("bounded", True), ("correct", True), ("entropy", False)])
def test_bounded_and_correct_weights_resist_a_poisoned_client(tmp_path, monkeypatch, weights, resists):
    sound = accuracy_of_the_others(weights, tmp_path / "sound")
    monkeypatch.setattr(MFedPBAMethod, "client_class", PoisonedClient)
    poisoned = accuracy_of_the_others(weights, tmp_path / "poisoned")
    assert sound > 40
    assert (poisoned > sound - 1) == resists
