"""What the hand-worked federations are made of, see the fixture `by_hand`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

CPU = torch.device("cpu")


class Data(NamedTuple):
    """A client: modality number -> rows (n, d), and the n labels; all rows are training rows, and test rows too."""

    values: Mapping[int, Sequence[Sequence[float]]]
    labels: Sequence[int]
