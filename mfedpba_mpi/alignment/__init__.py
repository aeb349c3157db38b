"""The server's mathematics for MFedPBA: the prototype auto-encoder, the losses and the Gromov-Wasserstein alignment."""

from mfedpba_mpi.alignment.autoencoder import PrototypeAutoencoder, PrototypeBatch
from mfedpba_mpi.alignment.gromov import PlanRecord, StructureAlignment
from mfedpba_mpi.alignment.losses import aggregate_logits, contrastive_loss, reconstruction_loss

__all__ = [
    "PlanRecord",
    "PrototypeAutoencoder",
    "PrototypeBatch",
    "StructureAlignment",
    "aggregate_logits",
    "contrastive_loss",
    "reconstruction_loss",
]
