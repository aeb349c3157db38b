"""A throw-away SLURM on this machine: munged, slurmctld and two slurmd as the nodes n1 and n2, with two GPUs each.

All that it writes is in one temporary directory, and its daemons listen on loopback only. Every node has a host
name, process numbers, /etc/hosts, /dev/shm and TMPDIR of its own (namespaces), so that MPI takes it for another
machine, and no process of a job outlives it. The GPUs are /dev/null and /dev/zero: SLURM gives them out, and torch
finds none.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.debian import install

ROOT = Path(__file__).parents[2]
NODES = ("n1", "n2")
PACKAGES = ("slurm-wlm", "munge", "libpmix2")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "setpriv")
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
NAMESPACES = ("unshare", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
# The nodes talk by TCP alone. Open MPI leaves lo out, and MPICH takes them for one machine, with shared memory.
NETWORK = {"OMPI_MCA_btl_tcp_if_include": "lo", "UCX_TLS": "self,tcp"}
# The shell stays as process 1 of its namespaces, which reaps orphans, and with which all in them end.
# Open MPI's files in TMPDIR have host and process number as their name: those of a node that was killed, found again by
# one of the same name, end its mpirun with "The PMIx server's listener thread failed to start".
HOST = """
hostname "$0" && mount --bind hosts /etc/hosts || exit
for private in /dev/shm tmp; do mount -t tmpfs tmpfs "$private" || exit; done
"$@"; exit
"""
CONF = """
ClusterName=test
SlurmctldHost=control(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
# A requeued job waits for as long as a credential is valid, by default 120 s.
AuthInfo=socket={directory}/munge,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/control.pid
SlurmdPidFile={directory}/%n.pid
SlurmdSpoolDir={directory}/%n
TmpFS={directory}/%n
# Nodes have more CPUs than the machine.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
# As on most clusters memory is given out as well, and a step takes that of the whole job.
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=5
# Jobs that have ended are remembered for a day.
MinJobAge=86400
GresTypes=gpu
NodeName=n1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=128 RealMemory=512000 Gres=gpu:2
NodeName=n2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=128 RealMemory=512000 Gres=gpu:2
PartitionName=test Nodes=ALL Default=YES DefaultTime=10 MaxTime=INFINITE
"""


def unavailable() -> str:
    """Why there can be no cluster here, or ''. Debian packages that are missing are installed."""
    if "SLURM_JOB_ID" in os.environ:
        return "this is a SLURM job already"
    if os.geteuid() != 0:
        return "a SLURM of our own needs root"
    here = _pmix() and all(shutil.which(name, path=PATH) for name in PROGRAMS)
    if not here and (reason := install(*PACKAGES)):
        return reason
    if subprocess.run([*NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True).returncode:
        return "namespaces for the nodes are not permitted (a container without CAP_SYS_ADMIN?)"
    return ""


def _pmix() -> Path | None:
    """Debian's PMIx library."""
    return next(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so.2"), None)


class Cluster:
    """A context manager. Its daemons are children of this process, and are ended with it, however it ends.

    `directory` holds configuration, logs and state; `env` is the environment of a plain user's shell, with SLURM_CONF.
    A job is named by the number that `submit` returns, or a task of an array by ``f"{job}_{task}"``.
    """

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
            kept = {name: os.environ[name] for name in ("HOME", "LANG", "MFEDPBA_MPI") if name in os.environ}
            ours = {"SLURM_CONF": str(self.directory / "slurm.conf"), "TMPDIR": str(self.directory / "tmp")}
            self.env = {**kept, "PATH": PATH, **ours, **NETWORK}
            self._write_files()
            munge = {"socket": "munge", "key-file": "key", "pid-file": "munge.pid", "seed-file": "munge.seed"}
            options = [f"--{name}={self.directory / file}" for name, file in munge.items()]
            self._start(stack, "munged", "munged", "--foreground", *options)
            self._start(stack, "control", *NAMESPACES, "sh", "-c", HOST, "control", "slurmctld", "-D")
            for node in NODES:
                self._start(stack, node, *NAMESPACES, "sh", "-c", HOST, node, "slurmd", "-D", "-N", node)
            self.until(self._idle, "nodes are not idle", 60)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *args: object) -> None:
        self._stack.close()

    def run(self, *command: object, **options: object) -> subprocess.CompletedProcess[str]:
        """The result of a command in the user's shell, such as ``run("squeue", "--noheader")``."""
        settings = {"env": self.env, "cwd": self.directory, "timeout": 60, **options}
        return subprocess.run([*map(str, command)], capture_output=True, text=True, **settings)  # type: ignore[call-overload]

    def submit(self, *args: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
        """``sbatch ARGS`` (options, then script and its arguments) with `env` added to the user's; the job's number.

        Output goes to the cluster's directory, see `output`, unless an option of ARGS says where.
        """
        line = ("sbatch", "--parsable", f"--chdir={cwd}", f"--output={self.directory}/job-%j.out", *args)
        done = self.run(*line, cwd=cwd, env=self.env | (env or {}))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def show(self, job: str) -> list[dict[str, str]]:
        """What ``scontrol show job`` says: a record of names and values, or several of a job array."""
        lines = self.run("scontrol", "--oneliner", "show", "job", job).stdout.splitlines()
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines]

    def wait(self, job: str, *states: str, timeout: float = 120) -> list[dict[str, str]]:
        """The records of a job once all its tasks are in one of the `states`, by default in one that is an end."""

        def arrived() -> list[dict[str, str]]:
            records = self.show(job)
            return records if all(record["JobState"] in (states or ENDED) for record in records) else []

        return self.until(arrived, f"job {job} is not {' or '.join(states or ('over',))}", timeout)

    def finish(self, job: str, timeout: float = 120) -> int:
        """The exit code of a job's script, waited for."""
        (record,) = self.wait(job, timeout=timeout)
        return int(record["ExitCode"].split(":")[0])

    def output(self, job: str) -> str:
        """What a job has written so far."""
        (record,) = self.show(job)
        path = Path(record["StdOut"])
        return path.read_text() if path.exists() else ""

    def cancel(self, *args: object) -> None:
        """``scancel ARGS``."""
        assert self.run("scancel", *args).returncode == 0

    def _write_files(self) -> None:
        self.directory.chmod(0o755)  # munged refuses a socket that not everyone can reach
        for name in ("state", "tmp", *NODES):
            (self.directory / name).mkdir()
        (self.directory / "key").write_bytes(secrets.token_bytes(128))
        (self.directory / "key").chmod(0o600)
        (self.directory / "hosts").write_text(f"127.0.0.1 localhost control {' '.join(NODES)}\n")
        (self.directory / "slurm.conf").write_text(CONF.format(directory=self.directory, ports=_free_ports(3)))
        (self.directory / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        library = _pmix()
        if library and not library.with_suffix("").exists():  # SLURM asks for the name that libpmix-dev would bring
            library.with_suffix("").symlink_to(library.name)

    def _start(self, stack: ExitStack, name: str, *command: str) -> None:
        """A daemon that is killed at the end, or when this process dies; its log is NAME.log."""
        with (self.directory / f"{name}.log").open("w") as log:
            line = ("setpriv", "--pdeathsig", "KILL", *command)
            process = subprocess.Popen(
                line, env=self.env, cwd=self.directory, stdin=-3, stdout=log, stderr=log, start_new_session=True
            )
        stack.callback(_end, process)

    def _idle(self) -> bool:
        return self.run("sinfo", "--noheader", "--format=%D %t").stdout == f"{len(NODES)} idle\n"

    def until(self, ready: Callable[[], Any], problem: str, timeout: float = 60) -> Any:
        """What `ready` returns once that is true; all waiting is done here."""
        end = time.monotonic() + timeout
        while not (result := ready()):
            if time.monotonic() > end:
                files = [*self.directory.glob("*.log"), *self.directory.glob("job-*.out")]
                logs = "".join(f"\n--- {file.name}\n{file.read_text()[-2000:]}" for file in files)
                raise TimeoutError(f"{problem} after {timeout:.0f} s{logs}")
            time.sleep(0.1)
        return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill process 1 of its namespaces where it has some, and all in them with it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in children or [str(process.pid)]:
        os.kill(int(pid), signal.SIGKILL)
    process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
