"""MFedPBA: prototype-guided bilateral alignment.

Clients upload feature prototypes E_k^m and logit prototypes I_k. The server broadcasts the global P_G^m of every
modality and I_G.

* client: L_client = L_ce + lambda_1 L_fea + lambda_2 L_logit, with prototypes computed on each mini-batch;
* server: I_G is a weighted mean (see `losses`); P_G^m is the output of an autoencoder, trained by S steps on
  L_rec + L_con + L_align.
"""

from __future__ import annotations

from mfedpba_mpi.comm.layout import Layout
from mfedpba_mpi.methods.base import Method
from mfedpba_mpi.methods.mfedpba.client import MFedPBAClient
from mfedpba_mpi.methods.mfedpba.server import MFedPBAServer


class MFedPBAMethod(Method):
    """Floats per round: C (|M_k| d + C) up, C (M d + C) and masks of present classes down.

    Class counts are not uploaded; they are part of the client specifications.
    """

    client_class = MFedPBAClient
    server_class = MFedPBAServer

    def upload(self, t: int, phase: int, k: int) -> Layout:
        p = self.problem
        return Layout({"E": (len(p.clients[k].modalities), p.C, p.d), "I": (p.C, p.C)})

    def reply(self, t: int, phase: int, k: int) -> Layout:
        M, C, d = self.problem.M, self.problem.C, self.problem.d
        return Layout({"P_G": (M, C, d), "I_G": (C, C)}, {"P_present": (M, C), "I_present": (C,)})


METHOD = MFedPBAMethod
