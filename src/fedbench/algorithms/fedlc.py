"""FedLC: logits calibrated by the client's own label counts.

Zhang et al., "Federated learning with label distribution skew via logits calibration", 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.algorithms.modifier import Local, Memory, Modifier, Scene
from fedbench.core.errors import nearest, require

VARIANTS = ("softmax", "paper")
LEAST_COUNT = 1e-8  # of a class that the client does not have: a margin of 100 tau, which masks it


@dataclass
class Calibration(Modifier):
    """Cross-entropy of z_c - tau * n_kc^(-1/4) instead of the logits z_c; counts never leave the
    client.

    `softmax` keeps the true class in the denominator; `paper` leaves it out, which has no lower
    bound. Evaluation uses the logits themselves.
    """

    order = 1
    tau: float = 1.0
    variant: str = "softmax"

    def bind(self, scene: Scene, key: str) -> None:
        require(0 <= self.tau <= 1e30, f"{key}.tau", self.tau, "a number from 0 to 1e30 is allowed")
        require(
            self.variant in VARIANTS,
            f"{key}.variant",
            self.variant,
            nearest(str(self.variant), VARIANTS),
        )
        super().bind(scene, key)
        self.classes = scene.classes

    @property
    def active(self) -> bool:
        """With tau 0, `softmax` is the plain cross-entropy."""
        return self.tau != 0.0 or self.variant == "paper"

    def begin(self, local: Local, memory: Memory) -> None:
        counts = torch.bincount(local.labels, minlength=self.classes).to(local.model.w.dtype)
        memory.scratch["margin"] = self.tau * counts.clamp(min=LEAST_COUNT).pow(-0.25)

    def loss(self, local: Local, memory: Memory, loss: Tensor) -> Tensor:
        calibrated, y = local.batch.logits - memory.scratch["margin"], local.batch.y
        if self.variant == "softmax":
            local.batch.each = functional.cross_entropy(calibrated, y, reduction="none")
        else:
            true, others = (
                calibrated.gather(1, y[:, None]),
                calibrated.scatter(1, y[:, None], -torch.inf),
            )
            local.batch.each = others.logsumexp(dim=1) - true[:, 0]
        return local.batch.each.mean()
