"""Every method gives bit-identical results on several ranks and in one process."""

import numpy as np
import pytest

from mfedpba_mpi import load_run
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.records.run_log import RunLog


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("fusion", ["sum", "separate"])
@pytest.mark.parametrize("method", METHODS)
def test_three_ranks_and_one_process_are_bit_identical(tiny, tmp_path, method, fusion):
    from mfedpba_mpi.comm.mpi import MPIComm

    config = tiny(method=method, fusion=fusion, clients=7, participation=0.6, rounds=4, eval_every=2)
    comm = MPIComm(config.clients)
    parallel, serial = tmp_path / "parallel", tmp_path / "serial"
    for directory in (parallel, serial):
        directory.mkdir()
    run_rounds(config, tmp_path, comm, [RunLog(parallel)])
    if comm.is_server:
        run_rounds(config, tmp_path, SerialComm(), [RunLog(serial)])
        a, b = load_run(parallel), load_run(serial)
        assert a.final["client_sha256"] == b.final["client_sha256"]
        assert a.final["server_sha256"] == b.final["server_sha256"]
        for name, values in b.rounds.items():
            if not name.startswith("seconds_"):
                np.testing.assert_array_equal(a.rounds[name], values, err_msg=name)
    comm.barrier()
