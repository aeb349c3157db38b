"""What is public: a change of this list is a change that users will notice."""

import mfedpba_mpi

PUBLIC = {
    "AutogradLoss", "Client", "Dataset", "EarlyStopping", "HeadClient", "HeadLoss", "HeadMethod", "HeadServer",
    "JsonLines", "Layout", "Method", "Modality", "Observer", "Parameters", "Partition", "PrintProgress", "Run",
    "RunConfig", "Server", "__version__", "average_heads", "load_clients", "load_run", "option", "register_dataset",
    "register_extractor", "register_method", "simulate", "write_store",
}  # fmt: skip


def test_what_is_public_is_there_and_documented():
    assert set(mfedpba_mpi.__all__) == PUBLIC
    for name in PUBLIC - {"__version__"}:
        assert getattr(mfedpba_mpi, name).__doc__, name
