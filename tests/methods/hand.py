"""Client data for the fixture `make_federation`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

CPU = torch.device("cpu")


class Data(NamedTuple):
    """Data of a client: rows (n, d) by modality number, and n labels; all rows are used for training and testing."""

    values: Mapping[int, Sequence[Sequence[float]]]
    labels: Sequence[int]
