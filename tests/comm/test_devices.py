"""Devices of ranks: the choice of a GPU, GPUs allocated by SLURM but invisible to torch, and ranks that differ."""

import pytest
import torch

from mfedpba_mpi.comm.devices import check_devices, check_slurm_gpus, choose_device, device_kind
from mfedpba_mpi.errors import UserError


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        (1, ["cuda:0"] * 4),
        (3, ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]),
        (8, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
    ],
    ids=["all see all", "each sees its own", "more ranks than GPUs", "more GPUs than ranks"],
)
@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_four_ranks_of_a_node_take_its_gpus_by_local_rank(requested, visible, devices):
    assert [choose_device(requested, local_rank, visible) for local_rank in range(4)] == devices


@pytest.fixture
def build(monkeypatch):
    """A function that makes torch look like a build for a version of CUDA that sees a number of GPUs."""

    def make(cuda, visible):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)

    return make


def test_gpus_allocated_to_a_cpu_build_of_torch_are_refused(build):
    build(None, 0)
    with pytest.raises(UserError, match=r"allocated 4 GPUs on .* torch \d.* a CPU build, .* CUDA, or use --device cpu"):
        check_slurm_gpus(4)


def test_gpus_hidden_from_a_cuda_build_of_torch_are_refused(build, monkeypatch):
    build("12.4", 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        UserError, match=r"allocated 1 GPU on .* `nvidia-smi` .* CUDA_VISIBLE_DEVICES \(empty\), or use"
    ):
        check_slurm_gpus(1)


@pytest.mark.parametrize(("given", "visible"), [(4, 4), (4, 1), (0, 0), (0, 2)])
def test_visible_gpus_and_jobs_without_gpus_are_accepted(build, given, visible):
    build("12.4", visible)
    check_slurm_gpus(given)


TINY = ("--dataset", "synthetic", "--samples", 120, "--dims", "6,10,8", "--rounds", 1)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="torch sees GPUs here")
def test_a_run_leaves_no_gpu_idle_unless_device_is_cpu(command, monkeypatch):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    result = command(*TINY)
    assert result.returncode == 2
    assert result.stderr.startswith("mfedpba-mpi: device: SLURM allocated 2 GPUs")
    assert result.stderr.count("\n") == 1
    assert command(*TINY, "--device", "cpu").returncode == 0


def test_the_kind_of_a_device_names_type_and_model(monkeypatch):
    assert device_kind(torch.device("cpu")).startswith("cpu: ")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    assert device_kind(torch.device("cuda:1")) == "cuda: NVIDIA A100"


CPU, A100, H100 = "cpu: AMD EPYC", "cuda: NVIDIA A100", "cuda: NVIDIA H100"


@pytest.mark.parametrize("kinds", [[CPU] * 3, [A100] * 3, [CPU, "cpu: Intel Xeon"]])
@pytest.mark.parametrize("requested", ["auto", "cpu", "cuda"])
def test_ranks_with_the_same_kind_of_device_are_fine(kinds, requested):
    assert check_devices(kinds, requested) == ""  # models of CPUs are a matter of `cpu_kind`


@pytest.mark.parametrize("kinds", [[CPU, A100], [A100, A100, H100]])
def test_auto_refuses_ranks_with_different_devices(kinds):
    with pytest.raises(UserError, match=r"different devices \(.* on rank 0, .* on rank \d\).* use --device cpu, or "):
        check_devices(kinds, "auto")


def test_different_gpus_with_device_cuda_give_a_warning():
    assert "cuda: NVIDIA A100 on rank 0, cuda: NVIDIA H100 on rank 2" in check_devices([A100, A100, H100], "cuda")


@pytest.mark.parametrize(
    ("requested", "local_rank", "visible", "expected"),
    [
        ("auto", 0, 0, "cpu"),
        ("cpu", 3, 4, "cpu"),
        ("auto", 0, 4, "cuda:0"),
        ("auto", 3, 4, "cuda:3"),
        ("auto", 6, 4, "cuda:2"),  # several ranks on a GPU
        ("cuda", 5, 1, "cuda:0"),  # the launcher shows each rank its own GPU
    ],
)
def test_ranks_of_a_node_use_its_gpus_in_turn(requested, local_rank, visible, expected):
    assert choose_device(requested, local_rank, visible) == expected


def test_device_cuda_without_a_visible_gpu_is_an_error():
    with pytest.raises(UserError, match="none is visible to this rank"):
        choose_device("cuda", 0, 0)
