"""Which device a rank uses: the ranks of a node take its visible GPUs in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generators_restored

# Settings of torch that change the numbers of kernels, as a run has them.
_FLAGS = {
    (torch.backends.mkldnn, "enabled"): True,
    (torch.backends.cudnn, "enabled"): True,
    (torch.backends.cudnn, "benchmark"): False,
    (torch.backends.cudnn, "allow_tf32"): False,
    (torch.backends.cuda.matmul, "allow_tf32"): False,
}

# Variables by which libraries of kernels choose others than the CPU's kind would have.
_KERNEL_VARIABLES = (
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE", "OPENBLAS_CORETYPE",
)  # fmt: skip


def cpu_kind() -> str:
    """The instruction set that torch uses, and variables that change it for others: bits depend on these."""
    chosen = [f"{name}={os.environ[name]}" for name in _KERNEL_VARIABLES if os.environ.get(name)]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *chosen])


def pick(requested: str, local_rank: int, visible: int) -> str:
    """The torch device of a rank.

    Parameters
    ----------
    requested : ``auto`` (a GPU where one is visible), ``cpu`` or ``cuda``.
    local_rank : number of the rank on its node.
    visible : GPUs this process sees. A launcher that gives each rank one GPU of its own makes this 1, and the answer
        ``cuda:0``; several ranks share a GPU when there are more ranks than GPUs.
    """
    if requested == "cuda" and visible == 0:
        raise UserError("device: cuda was asked for, but this rank sees no GPU; use --device cpu, or ask for GPUs")
    return "cpu" if requested == "cpu" or visible == 0 else f"cuda:{local_rank % visible}"


def check_given(given: int) -> None:
    """Refuse to leave the `given` GPUs of a job idle because torch sees none of them."""
    if torch.cuda.device_count() or not given:
        return
    if torch.version.cuda or torch.version.hip:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        fix = f"see what `nvidia-smi` says, and CUDA_VISIBLE_DEVICES ({shown or 'empty'})"
    else:
        fix = "it is a build for CPUs, install one for CUDA"
    raise UserError(
        f"device: SLURM gave {given} GPU{'s' * (given > 1)} on this node, but torch {torch.__version__} sees none: "
        f"{fix}, or use --device cpu"
    )


@contextmanager
def process_settings_restored() -> Iterator[None]:
    """Leave torch's settings, most of which `set_up` changes, and all random generators as they were.

    Inside, gradients are recorded as usual.
    """
    threads, dtype, device = torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    flags = {(part, name): getattr(part, name) for part, name in _FLAGS}
    flushes = bool(torch.tensor(1e-40, dtype=torch.float32, device="cpu") / 2 == 0)  # torch tells it in no other way
    try:
        with (
            generators_restored(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)  # any other makes every call slower
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_flush_denormal(flushes)
        for (part, name), value in flags.items():
            setattr(part, name, value)


def set_up(requested: str, local_rank: int, threads: int) -> torch.device:
    """Pin this process to its device and its number of threads; from here on its results are deterministic.

    Settings of torch that change numbers are as in a new process, whatever a notebook has done to them.
    """
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_flush_denormal(False)
    for (part, name), value in _FLAGS.items():
        setattr(part, name, value)
    device = torch.device(pick(requested, local_rank, torch.cuda.device_count()))
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
        torch.use_deterministic_algorithms(True)
    return device
