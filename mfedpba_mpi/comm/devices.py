"""The device of a rank. The ranks of a node take its visible GPUs in turn."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from mfedpba_mpi.errors import UserError
from mfedpba_mpi.rng import generators_restored

# torch settings that change numerical results, with their values in a run.
_FLAGS = {
    (torch.backends.mkldnn, "enabled"): True,
    (torch.backends.cudnn, "enabled"): True,
    (torch.backends.cudnn, "benchmark"): False,
    (torch.backends.cudnn, "allow_tf32"): False,
    (torch.backends.cuda.matmul, "allow_tf32"): False,
}

# Environment variables that make math libraries choose other kernels than the CPU's default ones.
_KERNEL_VARIABLES = (
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE", "OPENBLAS_CORETYPE",
)  # fmt: skip


def cpu_kind() -> str:
    """What bits depend on: vendor, torch's instruction set, and environment variables that change math kernels.

    The vendor counts because math libraries choose kernels by it: AMD and Intel both report AVX512.
    """
    vendor = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(_cpu_info("vendor_id"), _cpu_info("vendor_id"))
    chosen = [f"{name}={os.environ[name]}" for name in _KERNEL_VARIABLES if os.environ.get(name)]
    return " ".join(filter(None, [vendor, torch.backends.cpu.get_cpu_capability(), *chosen]))


def device_kind(device: torch.device) -> str:
    """Type and model of a device, for example ``cpu: AMD EPYC 7763`` or ``cuda: NVIDIA A100-SXM4-80GB``."""
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_info("model name")
    return f"{device.type}: {model or platform.machine()}"


def compute_kind(kind: str) -> str:
    """What of a `device_kind` decides the bits: the model of a GPU. For CPUs see `cpu_kind`."""
    return "cpu" if kind.startswith("cpu:") else kind


def check_devices(kinds: Sequence[str], requested: str) -> str:
    """A warning if the ranks' devices (`device_kind`, rank by rank) differ, "" if they do not.

    Raises a UserError for ``auto``, which must not mix devices silently.
    """
    found = {compute_kind(kind): rank for rank, kind in reversed(list(enumerate(kinds)))}
    if len(found) < 2:
        return ""
    listed = ", ".join(f"{kind} on rank {rank}" for kind, rank in sorted(found.items(), key=lambda item: item[1]))
    if requested == "auto":
        raise UserError(
            f"device: the ranks have different devices ({listed}), so bits would depend on which rank trains which "
            "client; use --device cpu, or --device cuda with a GPU for every rank"
        )
    return f"the ranks have different devices ({listed}): bits depend on which rank has which client"


@functools.cache
def _cpu_info(name: str) -> str:
    """A line of /proc/cpuinfo; "" where there is none."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def choose_device(requested: str, local_rank: int, visible: int) -> str:
    """The torch device of a rank.

    Parameters
    ----------
    requested : ``auto`` (a GPU if one is visible), ``cpu`` or ``cuda``.
    local_rank : number of the rank on its node.
    visible : number of GPUs visible to this process. It is 1 if the launcher gives each rank its own GPU; the device is
        then ``cuda:0``. With more ranks than GPUs, ranks share GPUs.
    """
    if requested == "cuda" and visible == 0:
        raise UserError("device: cuda needs a GPU, but none is visible to this rank; use --device cpu, or request GPUs")
    return "cpu" if requested == "cpu" or visible == 0 else f"cuda:{local_rank % visible}"


def check_slurm_gpus(allocated: int) -> None:
    """Raise a UserError if SLURM has allocated GPUs but torch sees none: they would stay idle."""
    if torch.cuda.device_count() or not allocated:
        return
    if torch.version.cuda or torch.version.hip:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        fix = f"check `nvidia-smi` and CUDA_VISIBLE_DEVICES ({shown or 'empty'})"
    else:
        fix = "this is a CPU build, install one for CUDA"
    raise UserError(
        f"device: SLURM allocated {allocated} GPU{'s' * (allocated > 1)} on this node, but torch {torch.__version__} "
        f"sees none: {fix}, or use --device cpu"
    )


@contextmanager
def process_settings_restored() -> Iterator[None]:
    """Restore torch's settings, most of which `set_up` changes, and all random generators at the end.

    Inside, autograd is enabled, and inference mode and autocast are off.
    """
    threads, dtype, device = torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    flags = {(part, name): getattr(part, name) for part, name in _FLAGS}
    flush = bool(torch.tensor(1e-40, dtype=torch.float32, device="cpu") / 2 == 0)  # torch has no getter
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
        torch.set_default_device(None if device.type == "cpu" else device)  # "cpu" would slow down every call
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_flush_denormal(flush)
        for (part, name), value in flags.items():
            setattr(part, name, value)


def set_up(requested: str, local_rank: int, threads: int) -> torch.device:
    """Select this rank's device and number of threads, and make torch deterministic.

    torch settings that change results are reset to those of a new process, whatever a notebook has done to them.
    """
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_flush_denormal(False)
    for (part, name), value in _FLAGS.items():
        setattr(part, name, value)
    device = torch.device(choose_device(requested, local_rank, torch.cuda.device_count()))
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
        torch.use_deterministic_algorithms(True)
    return device
