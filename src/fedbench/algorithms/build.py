"""Put an algorithm together from its configuration, and refuse combinations that make no sense, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedbench.algorithms.aggregate import Mean
from fedbench.algorithms.base import Modifier
from fedbench.algorithms.server import Add
from fedbench.errors import BadInput, nearest, require
from fedbench.flat import FlatModel, Selection
from fedbench.settings import WEIGHTS, ClientSettings

LOCAL_PARTS = ("none", "batchnorm", "head", "all")
SCORINGS = ("per_client", "avg_bn", "mean_acc")


@dataclass
class Algorithm:
    """The slots and the modifiers, in the order in which they act."""

    name: str = "fedavg"
    weights: str = "samples"
    aggregate: Any = field(default_factory=Mean)
    server_opt: Any = field(default_factory=Add)
    local: str = "none"
    pooled: bool = False
    modifiers: dict[str, Modifier] = field(default_factory=dict)
    scoring: str | None = None  # how clients' own models are scored; resolved by `bind`
    stamps: list[str] = field(default_factory=list)  # what a reader of the numbers must know

    shared: Selection = field(init=False)  # parameters that leave the client
    kept: Selection = field(init=False)  # parameters that never do

    def bind(self, model: FlatModel) -> None:
        """Resolve selections on this model; settings that make a modifier the identity drop it here."""
        self.kept = {
            "none": model.nothing,
            "batchnorm": model.batch_norm,
            "head": lambda: model.last(1, "algo.local"),
            "all": model.everything,
        }[self.local]()
        self.shared = model.without(model.everything(), self.kept)
        for name, modifier in self.modifiers.items():
            modifier.bind(model, self.shared, f"algo.modifiers.{name}")
        self.modifiers = {name: piece for name, piece in self.modifiers.items() if piece.active}
        for name, modifier in self.modifiers.items():
            if self.shared.size == 0:
                raise BadInput(
                    f"modifier={name}: nothing leaves the client under algo={self.name}, so it has no meaning"
                )
            if modifier.where.size == 0:
                raise BadInput(
                    f"modifier={name}: its layers hold nothing that leaves the client under algo={self.name}"
                )
        self._resolve_scoring()

    def _resolve_scoring(self) -> None:
        if not self.personal:
            self.scoring = "global"
        elif self.scoring in (None, "global"):
            self.scoring = "per_client"
        fits = self.scoring != "avg_bn" or self.local == "batchnorm"
        require(
            fits, "algo.scoring", self.scoring, "only batch norm can be averaged; per_client and mean_acc are allowed"
        )

    @property
    def keeps_buffers(self) -> bool:
        """Whether batch-norm statistics stay on the client."""
        return self.local in ("batchnorm", "all")

    @property
    def personal(self) -> bool:
        """Whether clients hold models of their own. FedBN on a model without batch norm does not: it is FedAvg."""
        return self.kept.size > 0


def build(algo: dict[str, Any], client: ClientSettings, server_weights: str | None) -> Algorithm:
    modifiers: dict[str, Modifier] = algo["modifiers"]
    weights = server_weights or algo["weights"]
    require(weights in WEIGHTS, "algo.weights", weights, nearest(weights, WEIGHTS))
    require(algo["local"] in LOCAL_PARTS, "algo.local", algo["local"], nearest(str(algo["local"]), LOCAL_PARTS))
    scoring = algo.get("scoring")
    require(scoring in (None, *SCORINGS), "algo.scoring", scoring, nearest(str(scoring), SCORINGS))
    _refuse_repetition(modifiers)
    stamps = _refuse_adaptive(algo, client)
    return Algorithm(
        name=algo["name"],
        weights=weights,
        aggregate=algo["aggregate"],
        server_opt=algo["server_opt"],
        local=algo["local"],
        pooled=algo["pooled"],
        modifiers=dict(sorted(modifiers.items(), key=lambda item: (item[1].order, item[0]))),
        scoring=scoring,
        stamps=stamps,
    )


def _refuse_repetition(modifiers: dict[str, Modifier]) -> None:
    seen: dict[type, str] = {}
    for name, piece in modifiers.items():
        if type(piece) in seen:
            first = seen[type(piece)]
            raise BadInput(f"modifier={name}: it is the same correction as '{first}', which this algorithm has already")
        seen[type(piece)] = name


def _refuse_adaptive(algo: dict[str, Any], client: ClientSettings) -> list[str]:
    """(w - w_k) / (eta * K) is a mean gradient only for a linear solver; with Adam it means nothing."""
    needing = [name for name, piece in algo["modifiers"].items() if piece.needs_linear_solver]
    if algo["aggregate"].needs_linear_solver:
        needing.insert(0, algo["name"])
    if not needing or client.optimizer == "sgd":
        return []
    reason = f"{needing[0]} reads a mean gradient off the local path, which only sgd leaves there"
    if not algo["allow_adaptive"]:
        raise BadInput(f"client.optimizer={client.optimizer}: {reason}; algo.allow_adaptive=true runs it all the same")
    return [f"adaptive client optimizer ({client.optimizer}) although {reason}"]
