"""``python -m tests.slurm``: a SLURM of two virtual nodes to try batch scripts on, until Ctrl-C."""

import signal
import sys

from tests.slurm.cluster import NETWORK, Cluster, unavailable

if reason := unavailable():
    sys.exit(f"no SLURM: {reason}")
for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores SIGINT otherwise
    signal.signal(number, signal.default_int_handler)
try:
    with Cluster() as cluster:
        exports = " ".join(f"{name}={cluster.env[name]}" for name in ("SLURM_CONF", *NETWORK))
        print(f"nodes n1 and n2 are up until Ctrl-C; logs are in {cluster.directory}. In another shell:")
        print(f"export {exports}", flush=True)
        signal.pause()
except KeyboardInterrupt:
    print("stopped")
