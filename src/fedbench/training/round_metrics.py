"""What a round leaves for the record: losses, communication, work, a row a client."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import RoundPlan
from fedbench.config.schema import DiagnosticsSettings
from fedbench.core.flat_model import FlatModel
from fedbench.training.client import Trained, layer_norms
from fedbench.training.divergence import Divergence, broken_layer, broken_step
from fedbench.training.evaluation import Score

# Numbers that every client leaves: training loss, drift, norm of what it sends; and should one of
# them be out of bounds (else -1) the layer, the step and the size of its batch.
FIXED = 6


# Columns by layer: of the data loss's gradient, and of what the method makes of it.
GRADIENT_NORMS = ("gradient_norm", "step_gradient_norm")


@dataclass
class Record:
    """One round, for the metrics."""

    round: int  # counted from 1
    numbers: dict[str, float]
    # A row for each client that was invited.
    clients: list[dict[str, object]] = field(default_factory=list)
    score: Score | None = None  # None when this round is not evaluated
    diverged: Divergence | None = None  # when training broke down
    stopped: str | None = None  # the setting of `stop` that ends the run here


@dataclass
class Totals:
    """Sums over the run so far, as every row of the metrics shows them."""

    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0  # per-example gradient evaluations
    seconds: float = 0.0

    def count(
        self, plan: RoundPlan, algorithm: Algorithm, examples: int, bytes_a_float: int
    ) -> None:
        """Add a round. Communication: trainable parameters (no buffers), and methods' extras."""
        down = algorithm.shared.size * len(plan.invited)
        up = (algorithm.shared.size + algorithm.aggregate.extra_scalars) * len(plan.cohort)
        for modifier in algorithm.modifiers.values():
            more_down, more_up = modifier.traffic(plan)
            down, up = down + more_down, up + more_up
            examples += modifier.extra_gradients(plan)
        self.bytes_down += down * bytes_a_float
        self.bytes_up += up * bytes_a_float
        self.gradients += examples


class ClientNumbers:
    """The numbers that a client's work leaves: the row that ranks exchange, and its columns.

    Side by side: the `FIXED` ones, batch counters, what modifiers record, what diagnostics ask for,
    and chosen steps (their numbers, then -1 up to the longest client).
    """

    def __init__(
        self,
        model: FlatModel,
        algorithm: Algorithm,
        diagnostics: DiagnosticsSettings,
        suspicious: float,
    ):
        self.model = model
        self.shared = algorithm.shared
        self.diagnostics = diagnostics
        self.suspicious = suspicious  # a loss above it
        modifiers = list(algorithm.modifiers.values())
        self.names = [column for modifier in modifiers for column in modifier.records]
        self.steps_names = [one.records_steps for one in modifiers if one.records_steps]
        self.norm_names = self._by_layer(diagnostics.gradient_norms, *GRADIENT_NORMS)
        self.drift_names = self._by_layer(diagnostics.drift, "drift", "update_norm")
        timing = ["seconds"] if diagnostics.seconds else []
        self.more_names = [*self.norm_names, *self.drift_names, *timing]
        self.first = FIXED + len(model.counters)

    def width(self, plan: RoundPlan) -> int:
        fixed = self.first + len(self.names) + len(self.more_names)
        return fixed + len(self.steps_names) * max(plan.steps)

    def _by_layer(self, wanted: bool, *kinds: str) -> list[str]:
        return [f"{kind}/{layer.name}" for kind in kinds if wanted for layer in self.model.layers]

    def write(self, row: Tensor, trained: Trained) -> None:
        """The drift is how far the client's model is from what it received (SCAFFOLD's word).

        What it sends may be something else: a part of the model, or a corrected update. All that is
        on the device comes in one copy.
        """
        results = list(trained.results.values())
        update, device = trained.local.raw_update, self.model.device
        norm = sent = torch.linalg.vector_norm(update)
        if trained.local.update is not update or self.shared.size < self.model.size:
            sent = torch.linalg.vector_norm(self.shared.read(trained.local.update))
        recorded = [number for result in results for number in result.numbers]
        pieces = [trained.loss, norm, sent, self.model.counters]
        pieces += [one for one in recorded if _is_on(one, device)]
        copied = iter(_read([*pieces, *self._diagnosed(trained)]))
        seconds = time.perf_counter() - trained.started  # a GPU has finished now, not before
        loss, drift, sent_norm = islice(copied, 3)
        blamed, where = -1, (-1, -1)
        if not loss <= self.suspicious:  # also when it is not a number
            blamed = broken_layer(self.model.layers, update)
            where = broken_step(trained.local, self.suspicious)
        elif not math.isfinite(drift):
            where = broken_step(trained.local, self.suspicious)
        values = [loss, drift, sent_norm, blamed, *where]
        values += islice(copied, len(self.model.counters))
        values += [next(copied) if _is_on(one, device) else float(one) for one in recorded]
        values += copied  # the diagnosed ones
        values += [seconds] if self.diagnostics.seconds else []
        longest = (len(row) - len(values)) // max(len(self.steps_names), 1)
        for result in results:
            if result.chosen:
                values += result.chosen + [-1] * (longest - len(result.chosen))
        values += [-1] * (len(row) - len(values))
        row.numpy()[:] = values  # at once: small operations of PyTorch take longer than all else

    def _diagnosed(self, trained: Trained) -> list[Tensor]:
        """What diagnostics ask for, under `more_names`; without the seconds."""
        found: list[Tensor] = []
        if trained.gradient_norms is not None:
            found.append(trained.gradient_norms.flatten())
        if self.diagnostics.drift:
            sent = torch.zeros_like(trained.local.update)
            self.shared.write(sent, self.shared.read(trained.local.update))
            found += [layer_norms(self.model, one) for one in (trained.local.raw_update, sent)]
        return found

    def losses(self, numbers: Tensor) -> Tensor:
        return numbers[:, 0]

    def counters(self, numbers: Tensor) -> Tensor:
        return numbers[:, FIXED : self.first]

    def recorded(self, numbers: Tensor) -> Tensor:
        """What modifiers record, a row a client."""
        return numbers[:, self.first : self.first + len(self.names)]

    def means(self, plan: RoundPlan, numbers: Tensor) -> dict[str, float]:
        """For a round's row of the metrics: weighted means of drifts, plain means of the rest.

        Of gradient norms, the standard deviation between clients, too.
        """
        weights = torch.tensor(plan.weights, dtype=torch.float64)
        recorded = self.recorded(numbers).mean(dim=0).tolist()
        first = self.first + len(self.names)
        norms = numbers[:, first : first + len(self.norm_names)]
        drifts = numbers[:, first + len(self.norm_names) :][:, : len(self.drift_names)]
        deviations = [name.replace("/", "_std/", 1) for name in self.norm_names]
        spread = (norms - norms.mean(dim=0)).square().mean(dim=0).sqrt()
        return {
            "client_drift": float(weights @ numbers[:, 1]),
            "update_norm": float(weights @ numbers[:, 2]),
            **dict(zip(self.names, recorded, strict=True)),
            **dict(zip(self.norm_names, norms.mean(dim=0).tolist(), strict=True)),
            **dict(zip(deviations, spread.tolist(), strict=True)),
            **dict(zip(self.drift_names, (weights @ drifts).tolist(), strict=True)),
        }

    def rows(self, plan: RoundPlan, numbers: Tensor, sizes: list[int]) -> list[dict[str, object]]:
        """A row for every client that was invited; without numbers if it was then left out."""
        columns = ["train_loss", "drift", "update_norm", *self.names, *self.more_names]
        positions = {client: position for position, client in enumerate(plan.cohort)}
        all_values = numbers.tolist()
        rows = []
        for invited, client in enumerate(plan.invited):
            position = positions.get(client)
            row: dict[str, object] = {
                "round": plan.index + 1,
                "client": client,
                "samples": sizes[client],
                "steps": 0 if position is None else plan.steps[position],
                "weight": 0.0 if position is None else plan.weights[position],
            }
            values: list[float] = []
            if position is not None:
                own = all_values[position]
                values = own[:3] + own[self.first :]
            filled: list[object] = [*values] or [""] * len(columns)
            row |= dict(zip(columns, filled, strict=False))
            row |= {name: note[invited] for name, note in plan.notes.items()}
            rest = values[len(columns) :]
            longest = len(rest) // max(len(self.steps_names), 1)
            for place, name in enumerate(self.steps_names):
                steps = rest[place * longest : (place + 1) * longest]
                row[name] = " ".join(str(int(step)) for step in steps if step >= 0)
            rows.append(row)
        return rows


def update_variance(plan: RoundPlan, numbers: Tensor, mean: Tensor) -> dict[str, float]:
    """How much what clients send differs, and how much its mean would with another cohort.

    With u_k what client k sends and u = sum p_k u_k, the first is V = sum p_k |u_k - u|^2. If the
    cohort's clients are independent draws, the variance of u is V * sum p_k^2 / (1 - sum p_k^2).
    """
    weights = torch.tensor(plan.weights, dtype=torch.float64)
    between = float(weights @ numbers[:, 2].square()) - float(mean.double().square().sum())
    concentration = float(weights.square().sum())
    whole = concentration / (1.0 - concentration) if len(plan.cohort) > 1 else math.nan
    between = max(between, 0.0) if math.isfinite(between) else between
    return {"update_variance": between, "aggregate_variance": between * whole}


def _is_on(number: Tensor | float, device: torch.device) -> bool:
    return isinstance(number, Tensor) and number.device == device


def _read(pieces: list[Tensor]) -> list[float]:
    """The numbers of scalars and vectors; from a device they come in one copy."""
    if pieces[0].device.type == "cpu":
        return [x for piece in pieces for x in (piece.tolist() if piece.ndim else [piece.item()])]
    return torch.cat([piece.to(torch.float64).reshape(-1) for piece in pieces]).to("cpu").tolist()
