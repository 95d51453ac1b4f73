"""Put an algorithm together from its configuration, and refuse combinations that make no sense,
with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedbench.algorithms.aggregate import Mean
from fedbench.algorithms.local_phases import Joint
from fedbench.algorithms.modifier import Modifier, Scene, overrides
from fedbench.algorithms.server_optimizer import Add
from fedbench.config.schema import WEIGHTS, ClientSettings
from fedbench.core.errors import BadInput, nearest, require
from fedbench.core.flat_model import Selection

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
    local_train: Any = field(default_factory=Joint)
    pooled: bool = False
    modifiers: dict[str, Modifier] = field(default_factory=dict)
    scoring: str | None = None  # how clients' own models are scored; resolved by `bind`
    projection: int | None = (
        None  # width of the projection that the network gets, unless the model has its own
    )
    stamps: list[str] = field(default_factory=list)  # what a reader of the numbers must know

    shared: Selection = field(init=False)  # parameters that leave the client
    kept: Selection = field(init=False)  # parameters that never do

    def bind(self, scene: Scene) -> None:
        """Resolve selections on this model; settings that make a modifier the identity drop it
        here.
        """
        model = scene.model
        self.kept = {
            "none": model.nothing,
            "batchnorm": model.batch_norm,
            "head": lambda: model.last(1, "algo.local"),
            "all": model.everything,
        }[self.local]()
        self.shared = model.without(model.everything(), self.kept)
        if self.local == "head" and self.shared.size == 0:
            raise BadInput(
                f"algo={self.name}: it needs a model with layers before the head, this one has none"
            )
        scene = replace(scene, shared=self.shared, aggregate=self.aggregate)
        for name, modifier in self.modifiers.items():
            modifier.bind(scene, f"algo.modifiers.{name}")
        self.modifiers = {name: piece for name, piece in self.modifiers.items() if piece.active}
        for name, modifier in self.modifiers.items():
            self._refuse(name, modifier, scene)
        self._resolve_scoring()

    def _refuse(self, name: str, modifier: Modifier, scene: Scene) -> None:
        """Combinations that make no sense on this model, with the reason."""
        if self.shared.size == 0:
            raise BadInput(
                f"modifier={name}: nothing leaves the client under algo={self.name}, so it has no"
                " meaning"
            )
        if modifier.where.size == 0:
            raise BadInput(
                f"modifier={name}: its layers hold nothing that leaves the client under"
                f" algo={self.name}"
            )
        reason = modifier.needs_plain_sgd
        require(
            not reason or scene.momentum == 0,
            "client.momentum",
            scene.momentum,
            f"{name}: {reason}; only 0 is allowed",
        )
        if modifier.needs_global_model and any(piece.personal for piece in self.modifiers.values()):
            raise BadInput(
                f"modifier={name}: it needs a global model, which the second phase of {self.name}"
                " has not"
            )

    def _resolve_scoring(self) -> None:
        if not self.personal:
            self.scoring = "global"
        elif self.scoring in (None, "global"):
            self.scoring = "per_client"
        fits = self.scoring != "avg_bn" or self.local == "batchnorm"
        require(
            fits,
            "algo.scoring",
            self.scoring,
            "only batch norm can be averaged; per_client and mean_acc are allowed",
        )

    @property
    def keeps_buffers(self) -> bool:
        """Whether batch-norm statistics stay on the client."""
        return self.local in ("batchnorm", "all")

    @property
    def keeps_part(self) -> bool:
        """Whether clients keep parameters. FedBN on a model without batch norm does not: it is
        FedAvg.
        """
        return self.kept.size > 0

    @property
    def personal(self) -> bool:
        """Whether clients hold models of their own."""
        return self.keeps_part or any(piece.personal for piece in self.modifiers.values())


def build(algo: dict[str, Any], client: ClientSettings, server_weights: str | None) -> Algorithm:
    modifiers: dict[str, Modifier] = algo["modifiers"]
    weights = server_weights or algo["weights"]
    require(weights in WEIGHTS, "algo.weights", weights, nearest(weights, WEIGHTS))
    require(
        algo["local"] in LOCAL_PARTS,
        "algo.local",
        algo["local"],
        nearest(str(algo["local"]), LOCAL_PARTS),
    )
    scoring = algo.get("scoring")
    require(scoring in (None, *SCORINGS), "algo.scoring", scoring, nearest(str(scoring), SCORINGS))
    _refuse_repetition(modifiers)
    _refuse_two_corrections(modifiers)
    stamps = _refuse_adaptive(algo, client)
    return Algorithm(
        name=algo["name"],
        weights=weights,
        aggregate=algo["aggregate"],
        server_opt=algo["server_opt"],
        local=algo["local"],
        local_train=algo["local_train"],
        pooled=algo["pooled"],
        modifiers=dict(sorted(modifiers.items(), key=lambda item: (item[1].order, item[0]))),
        scoring=scoring,
        projection=next(
            (piece.projection_size for piece in modifiers.values() if piece.projection_size), None
        ),
        stamps=stamps,
    )


def _refuse_repetition(modifiers: dict[str, Modifier]) -> None:
    seen: dict[type, str] = {}
    for name, piece in modifiers.items():
        if type(piece) in seen:
            first = seen[type(piece)]
            raise BadInput(
                f"modifier={name}: it is the same correction as '{first}', which this algorithm has"
                " already"
            )
        seen[type(piece)] = name


def _refuse_two_corrections(modifiers: dict[str, Modifier]) -> None:
    """SCAFFOLD and FedDyn estimate the same gradient difference: together they would subtract it
    twice.
    """
    first, *more = [name for name, piece in modifiers.items() if overrides(piece, "shift")] or [""]
    if more:
        raise BadInput(
            f"modifier={more[0]}: it corrects the same gradient as '{first}' of this algorithm does"
            " already"
        )


def _refuse_adaptive(algo: dict[str, Any], client: ClientSettings) -> list[str]:
    """(w - w_k) / (eta * K) is a mean gradient only for a linear solver; with Adam it means
    nothing.
    """
    needing = [name for name, piece in algo["modifiers"].items() if piece.needs_linear_solver]
    if algo["aggregate"].needs_linear_solver:
        needing.insert(0, algo["name"])
    if not needing or client.optimizer == "sgd":
        return []
    reason = f"{needing[0]} reads a mean gradient off the local path, which only sgd leaves there"
    if not algo["allow_adaptive"]:
        raise BadInput(
            f"client.optimizer={client.optimizer}: {reason}; algo.allow_adaptive=true runs it all"
            " the same"
        )
    return [f"adaptive client optimizer ({client.optimizer}) although {reason}"]
