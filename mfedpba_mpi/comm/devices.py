"""Which device a rank uses: the ranks of a node take its visible GPUs in turn."""

from __future__ import annotations

import os

import torch

from mfedpba_mpi.errors import UserError


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


def set_up(requested: str, local_rank: int, threads: int) -> torch.device:
    """Pin this process to its device and its number of threads; from here on its results are deterministic."""
    torch.set_num_threads(threads)
    device = torch.device(pick(requested, local_rank, torch.cuda.device_count()))
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return device
