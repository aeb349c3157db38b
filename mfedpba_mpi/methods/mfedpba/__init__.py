"""MFedPBA: prototype-guided bilateral alignment.

Up go the feature prototypes E_k^m and the logit prototypes I_k, down come the global P_G^m of every modality and I_G.

* client: L_client = L_ce + lambda_1 L_fea + lambda_2 L_logit, the prototypes inside it those of the mini-batch;
* server: I_G by entropy weights; P_G^m by the autoencoder that S steps of L_rec + L_con + L_align train.
"""

from __future__ import annotations

from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.methods.base import Method
from mfedpba_mpi.methods.mfedpba.client import MFedPBAClient
from mfedpba_mpi.methods.mfedpba.server import MFedPBAServer


class MFedPBAMethod(Method):
    """Up C (|M_k| d + C) floats, down C (M d + C); class counts are known from the start, presence travels along."""

    client_class = MFedPBAClient
    server_class = MFedPBAServer

    def upload(self, t: int, phase: int, k: int) -> Layout:
        p = self.problem
        return Layout({"E": (len(p.clients[k].modalities), p.C, p.d), "I": (p.C, p.C)})

    def reply(self, t: int, phase: int, k: int) -> Layout:
        M, C, d = self.problem.M, self.problem.C, self.problem.d
        return Layout({"P_G": (M, C, d), "I_G": (C, C)}, {"P_present": (M, C), "I_present": (C,)})


METHOD = MFedPBAMethod
