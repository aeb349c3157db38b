"""A study as a SLURM job array, and a job that makes the table afterwards.

Each element of the array runs a part of the study with `study run --part`, so it skips complete runs and continues
others. It receives a signal before its time limit, stops in order, and queues itself again.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mfedpba_mpi.cli.console import ranges
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.studies.runner import program

SCRIPTS = "slurm"  # in a study's directory: scripts and output of the jobs
RESTARTS = 100  # maximum number of times that an element queues itself again
CORES = "--cpus-per-task: a rank trains on one thread; more cores help with the setting threads, or memory bandwidth."
STAGING = """\
# Write shards, the ranks' parts of the data, to the node's local disk, if the job has one node and such a disk.
[[ $TMPDIR == *"$SLURM_JOB_ID"* ]] && : "${SLURM_TMPDIR:=$TMPDIR}"     # a directory of this job, not /tmp
[[ $SLURM_JOB_NUM_NODES == 1 && -d $SLURM_TMPDIR ]] && export MFEDPBA_SCRATCH=$SLURM_TMPDIR"""


@dataclass(frozen=True)
class Resources:
    """Resources of a job. An empty value leaves the choice to the site.

    Attributes
    ----------
    tasks : ranks of the largest run, times the number of parallel runs.
    mem : memory of a node.
    extra : other options of sbatch.
    """

    account: str = ""
    partition: str = ""
    time: str = ""
    nodes: int = 1
    tasks: int = 1
    cpus_per_task: int = 1
    gpus_per_node: str = ""
    mem: str = ""
    extra: tuple[str, ...] = ()

    def options(self) -> list[str]:
        """Options of sbatch for an element of the array."""
        values = {
            "time": self.time, "nodes": str(self.nodes), "ntasks": str(self.tasks),
            "cpus-per-task": str(self.cpus_per_task), "gpus-per-node": self.gpus_per_node, "mem": self.mem,
        }  # fmt: skip
        return [*self._queue(), *(f"--{name}={value}" for name, value in values.items() if value), *self.extra]

    def table_options(self) -> list[str]:
        """Options of sbatch for the job that makes the table, in one process."""
        return [*self._queue(), "--time=00:15:00", "--ntasks=1"]

    def _queue(self) -> list[str]:
        values = {"account": self.account, "partition": self.partition}
        return [f"--{name}={value}" for name, value in values.items() if value]


@dataclass(frozen=True)
class Submission:
    """The jobs of a study.

    Attributes
    ----------
    parts : number of parts that the study is divided into, after the changes in `assignments`.
    elements : parts with runs to do; each is an element of the array.
    at_once : maximum number of elements that run at the same time (None: no limit).
    setup : lines that prepare the environment, for example ``module load openmpi``.
    launcher, jobs, keep : options of `study run`.
    assignments : of ``--set``.
    remarks : comments on the resources in the script.
    """

    name: str
    directory: Path
    data_dir: Path
    parts: int
    elements: Sequence[int]
    at_once: int | None = None
    resources: Resources = field(default_factory=Resources)
    setup: tuple[str, ...] = ()
    launcher: str = "mpirun"
    jobs: int = 1
    keep: str = "last"
    assignments: Sequence[str] = ()
    remarks: Sequence[str] = (CORES,)

    def array(self) -> str:
        """The batch script of the array."""
        limit = f"%{self.at_once}" if self.at_once else ""
        options = [
            f"--job-name={self.name}", f"--array={ranges(self.elements)}{limit}", *self.resources.options(),
            "--signal=B:USR1@120", "--requeue", "--open-mode=append",
            f"--output={self._scripts / '%A_%a.out'}",
        ]  # fmt: skip
        run = [
            *self._program, "study", "run", str(self.directory.resolve()),
            *(word for text in self.assignments for word in ("--set", text)),
            "--data-dir", str(self.data_dir.resolve()), "--jobs", str(self.jobs), "--launcher", self.launcher,
            "--keep-checkpoints", self.keep,
        ]  # fmt: skip
        return "\n".join(
            [
                *self._header("each element runs a part of the study", options, self.remarks),
                STAGING,
                "",
                f'{shlex.join(run)} --part "$SLURM_ARRAY_TASK_ID/{self.parts}" & pid=$!',
                "trap 'kill -USR1 $pid' USR1     # before the time limit: checkpoint and stop",
                "wait $pid; code=$?",
                "while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done     # the trap interrupts the first wait",
                f"if ((code == 75 && ${{SLURM_RESTART_COUNT:-0}} < {RESTARTS})); then     # 75: to be continued",
                '    scontrol requeue "$SLURM_JOB_ID"',
                "fi",
                "exit $code",
            ]
        ) + "\n"  # fmt: skip

    def table(self) -> str:
        """The batch script of the job that makes the table."""
        options = [
            f"--job-name={self.name}-table", *self.resources.table_options(), f"--output={self._scripts / '%j.out'}"
        ]  # fmt: skip
        make = [*self._program, "study", "table", str(self.directory.resolve()), "--save"]
        return "\n".join([*self._header("table of the study", options), shlex.join(make)]) + "\n"

    @property
    def _scripts(self) -> Path:
        return self.directory.resolve() / SCRIPTS

    @property
    def _program(self) -> list[str]:
        """The command of this program in this environment, through `envs/run` if that has made the environment."""
        prefix = Path(sys.prefix)
        if (prefix / "made-by-envs-run").is_file():
            return [str(prefix.parent / "envs" / "run"), *program()]
        return program()

    def _header(self, purpose: str, options: list[str], remarks: Sequence[str] = ()) -> list[str]:
        mpi = os.environ.get("MFEDPBA_MPI")
        return [
            "#!/bin/bash",
            f"# {self.name}: {purpose}. Written by `mfedpba-mpi study submit`; you may edit and submit it by hand.",
            *(f"# {remark}" for remark in remarks),
            *(f"#SBATCH {shlex.quote(option)}" for option in options),
            "",
            f"cd {shlex.quote(str(Path.cwd()))}",
            *self.setup,
            *([f"export MFEDPBA_MPI={shlex.quote(mpi)}"] if mpi else []),
            "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1",
            "export OMPI_MCA_mpi_yield_when_idle=1     # a waiting rank yields its core",
            "unset SLURM_EXPORT_ENV     # else ranks lack these after sbatch --export=NONE",
            "",
        ]

    def submit(self) -> tuple[str, str]:
        """Write both scripts and submit them; return the job ids of the array and of the table."""
        if not shutil.which("sbatch"):
            raise UserError("submit: no sbatch on the PATH; use a login node of a SLURM cluster, or --dry-run")
        self._scripts.mkdir(parents=True, exist_ok=True)
        array, table = self._scripts / "array.sbatch", self._scripts / "table.sbatch"
        array.write_text(self.array())
        table.write_text(self.table())
        job = sbatch(str(array))
        return job, sbatch(f"--dependency=afterany:{job}", str(table))


def sbatch(*arguments: str) -> str:
    """Submit a script and return the job id; an error of sbatch is a UserError."""
    done = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True)
    if done.returncode:
        message = re.sub(r"\s+", " ", done.stderr.replace("sbatch: error: ", "")).strip()
        hint = "; fewer elements: --per-element N" if "array" in message.lower() else ""
        raise UserError(f"submit: sbatch failed: {message}{hint}")
    return done.stdout.strip().split(";")[0]
