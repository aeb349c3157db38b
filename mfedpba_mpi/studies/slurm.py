"""A study as a SLURM job array, and a job after it that makes the table.

An element of the array runs its part of the study with `study run --part`, as anybody would by hand: so it skips what
is complete and goes on with what is not. Before the time limit it is told to stop, stops in order, and queues itself
again.
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

SCRIPTS = "slurm"  # in a study's directory: scripts and what the jobs print
RESTARTS = 100  # times that an element queues itself again
CORES = "--cpus-per-task: a rank trains on one thread; more cores help with the setting threads, or memory bandwidth."
STAGING = """\
# The parts of the data that ranks read are written to the node's own disk, if the job has one node and such a disk.
[[ $TMPDIR == *"$SLURM_JOB_ID"* ]] && : "${SLURM_TMPDIR:=$TMPDIR}"     # the site's, and not /tmp
[[ $SLURM_JOB_NUM_NODES == 1 && -d $SLURM_TMPDIR ]] && export MFEDPBA_SCRATCH=$SLURM_TMPDIR"""


@dataclass(frozen=True)
class Resources:
    """What a job is given; what is empty is left to the site."""

    account: str = ""
    partition: str = ""
    time: str = ""
    nodes: int = 1
    tasks: int = 1  # ranks of the largest run, times the runs side by side
    cpus_per_task: int = 1
    gpus_per_node: str = ""
    mem: str = ""  # of a node
    extra: tuple[str, ...] = ()  # further options of sbatch, as they are

    def lines(self, whole: bool = True) -> list[str]:
        """As options of sbatch; not `whole`: of a short job in one process."""
        options = {"account": self.account, "partition": self.partition}
        if whole:
            options |= {
                "time": self.time, "nodes": str(self.nodes), "ntasks": str(self.tasks),
                "cpus-per-task": str(self.cpus_per_task), "gpus-per-node": self.gpus_per_node, "mem": self.mem,
            }  # fmt: skip
        else:
            options |= {"time": "00:15:00", "ntasks": "1"}
        return [f"--{name}={value}" for name, value in options.items() if value] + list(self.extra if whole else ())


@dataclass(frozen=True)
class Submission:
    """How a study is submitted.

    Attributes
    ----------
    parts : of the study, cut as `cut` (of ``--set``) says, and `elements` those of them with something to do.
    at_once : elements that may run together (None: as many as SLURM lets).
    setup : lines that make the environment, for example ``module load openmpi``.
    launcher, jobs, keep : as of `study run`.
    remarks : on the resources, for who reads the script.
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
    cut: Sequence[str] = ()
    remarks: Sequence[str] = (CORES,)

    def array(self) -> str:
        """The script of the array."""
        limit = f"%{self.at_once}" if self.at_once else ""
        options = [
            f"--job-name={self.name}", f"--array={ranges(self.elements)}{limit}", *self.resources.lines(),
            "--signal=B:USR1@120", "--requeue", "--open-mode=append",
            f"--output={self._scripts / '%A_%a.out'}",
        ]  # fmt: skip
        run = [
            *self._program, "study", "run", str(self.directory.resolve()),
            *(word for text in self.cut for word in ("--set", text)),
            "--data-dir", str(self.data_dir.resolve()), "--jobs", str(self.jobs), "--launcher", self.launcher,
            "--keep-checkpoints", self.keep,
        ]  # fmt: skip
        return "\n".join(
            [
                *self._head("every element runs a part of the study", options, self.remarks),
                STAGING,
                "",
                f'{shlex.join(run)} --part "$SLURM_ARRAY_TASK_ID/{self.parts}" & pid=$!',
                "trap 'kill -USR1 $pid' USR1     # before the time limit: stop in order, with checkpoints",
                "wait $pid; code=$?",
                "while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done     # a trap ends the first wait",
                f"if ((code == 75 && ${{SLURM_RESTART_COUNT:-0}} < {RESTARTS})); then     # 75: it would go on",
                '    scontrol requeue "$SLURM_JOB_ID"',
                "fi",
                "exit $code",
            ]
        ) + "\n"  # fmt: skip

    def table(self) -> str:
        """The script of the job that makes the table."""
        options = [
            f"--job-name={self.name}-table", *self.resources.lines(whole=False), f"--output={self._scripts / '%j.out'}"
        ]  # fmt: skip
        make = [*self._program, "study", "table", str(self.directory.resolve()), "--save"]
        return "\n".join([*self._head("the table of the study", options), shlex.join(make)]) + "\n"

    @property
    def _scripts(self) -> Path:
        return self.directory.resolve() / SCRIPTS

    @property
    def _program(self) -> list[str]:
        """The program in the environment that this process has; `envs/run` where that has made it."""
        prefix = Path(sys.prefix)
        if (prefix / "made-by-envs-run").is_file():
            return [str(prefix.parent / "envs" / "run"), *program()]
        return program()

    def _head(self, what: str, options: list[str], remarks: Sequence[str] = ()) -> list[str]:
        flavour = os.environ.get("MFEDPBA_MPI")
        return [
            "#!/bin/bash",
            f"# {self.name}: {what}. Made by `mfedpba-mpi study submit`; edit it and submit it by hand as you like.",
            *(f"# {remark}" for remark in remarks),
            *(f"#SBATCH {shlex.quote(option)}" for option in options),
            "",
            f"cd {shlex.quote(str(Path.cwd()))}",
            *self.setup,
            *([f"export MFEDPBA_MPI={shlex.quote(flavour)}"] if flavour else []),
            "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1",
            "export OMPI_MCA_mpi_yield_when_idle=1     # a waiting rank leaves its core to others",
            "unset SLURM_EXPORT_ENV     # after sbatch --export=NONE ranks would start without these",
            "",
        ]

    def submit(self) -> tuple[str, str]:
        """Write both scripts and submit them; the job ids of the array and of the table."""
        if not shutil.which("sbatch"):
            raise UserError("submit: no sbatch on the PATH; is this a login node of a SLURM cluster? --print shows it")
        self._scripts.mkdir(parents=True, exist_ok=True)
        array, table = self._scripts / "array.sbatch", self._scripts / "table.sbatch"
        array.write_text(self.array())
        table.write_text(self.table())
        job = sbatch(str(array))
        return job, sbatch(f"--dependency=afterany:{job}", str(table))


def sbatch(*arguments: str) -> str:
    """Submit, and return the job id; what SLURM says against it is a UserError."""
    done = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True)
    if done.returncode:
        said = re.sub(r"\s+", " ", done.stderr.replace("sbatch: error: ", "")).strip()
        hint = "; fewer elements: --per-element N" if "array" in said.lower() else ""
        raise UserError(f"submit: sbatch refuses: {said}{hint}")
    return done.stdout.strip().split(";")[0]
