"""FedLC: logits calibrated by the client's own label counts.

Zhang et al., "Federated learning with label distribution skew via logits calibration", 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.algorithms.context import LocalRun, Memory, label_counts
from fedbench.algorithms.modifier import Modifier
from fedbench.core.fields import choice, number

LEAST_COUNT = 1e-8  # of a class that the client does not have: a margin of 100 tau, which masks it


@dataclass
class Calibration(Modifier):
    """Cross-entropy of z_c - tau * n_kc^(-1/4) instead of the logits z_c.

    The counts n_kc never leave the client. `softmax` keeps the true class in the denominator;
    `paper` leaves it out, which has no lower bound. Evaluation uses the logits themselves.
    """

    order = 1
    capturable = True
    tau: float = number(1.0, at_least=0, at_most=1e30)
    variant: str = choice("softmax", ("softmax", "paper"))

    @property
    def active(self) -> bool:
        """With tau 0, `softmax` is the plain cross-entropy."""
        return self.tau != 0.0 or self.variant == "paper"

    def begin(self, local: LocalRun, memory: Memory) -> None:
        counts = label_counts(local.own.labels, self.context.classes).to(local.model.w.dtype)
        memory.scratch["margin"] = self.tau * counts.clamp(min=LEAST_COUNT).pow(-0.25)

    def loss(self, local: LocalRun, memory: Memory, loss: Tensor) -> Tensor:
        calibrated, y = local.batch.logits - memory.scratch["margin"], local.batch.y
        if self.variant == "softmax":
            local.batch.each = functional.cross_entropy(calibrated, y, reduction="none")
        else:
            true_logit = calibrated.gather(1, y[:, None])
            others = calibrated.scatter(1, y[:, None], -torch.inf)
            local.batch.each = others.logsumexp(dim=1) - true_logit[:, 0]
        return local.batch.each.mean()
