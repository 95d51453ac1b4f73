"""An algorithm: slots that each answer one question, and modifiers; what cannot be combined."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

from fedbench.algorithms.aggregate import Mean
from fedbench.algorithms.context import BindContext
from fedbench.algorithms.local_phases import Joint
from fedbench.algorithms.modifier import Modifier, overrides
from fedbench.algorithms.server_optimizer import Add
from fedbench.config.schema import WEIGHTS, ClientSettings
from fedbench.core.errors import BadInput, bad_value, require, require_known
from fedbench.core.fields import check_fields
from fedbench.core.flat_model import FlatModel, Selection

LOCAL_PARTS = ("none", "statistics", "batchnorm", "head", "all")
SCORINGS = ("per_client", "avg_bn", "mean_acc")
# The class that the object of a slot must extend: the engine uses more of it than one method.
BASES = {"aggregate": Mean, "server_opt": Add, "local_train": Joint, "modifiers": Modifier}


@dataclass
class Algorithm:
    """The slots and the modifiers, in the order in which they act. A value: `bind` copies it."""

    name: str = "fedavg"
    weights: str = "samples"
    aggregate: Any = field(default_factory=Mean)
    server_opt: Any = field(default_factory=Add)
    local: str = "none"
    local_train: Any = field(default_factory=Joint)
    pooled: bool = False
    modifiers: dict[str, Modifier] = field(default_factory=dict)
    scoring: str = ""  # how clients' own models are scored; resolved by `bind`
    # Width of the projection that the network gets, unless the model has its own.
    projection: int | None = None
    caveats: list[str] = field(default_factory=list)  # what a reader of the numbers must know

    # Set by `bind`: the parameters that leave the client, and those that never do.
    shared: Selection = field(init=False)
    kept: Selection = field(init=False)
    has_statistics: bool = field(init=False)  # whether the model has any, of batch norm

    def bind(self, context: BindContext) -> Algorithm:
        """A copy for this experiment, without modifiers that its settings make the identity.

        Raises BadInput for a combination that makes no sense on this model.
        """
        check_fields(self.aggregate, "algo.aggregate")
        check_fields(self.server_opt, "algo.server_opt")
        model, bound = context.model, copy.copy(self)
        bound.kept = self._kept(model)
        bound.has_statistics = len(model.b) > 0
        bound.shared = model.without(model.everything(), bound.kept)
        if self.local == "head" and bound.shared.size == 0:
            raise BadInput(f"algo={self.name}: the model must have layers before the head")
        context = replace(context, shared=bound.shared, aggregate=self.aggregate)
        modifiers = {
            name: modifier.bind(context, f"algo.modifiers.{name}")
            for name, modifier in self.modifiers.items()
        }
        bound.modifiers = {name: one for name, one in modifiers.items() if one.active}
        for modifier in bound.modifiers.values():
            bound._refuse(modifier, context)
        bound.scoring = bound._resolved_scoring()
        return bound

    def _kept(self, model: FlatModel) -> Selection:
        if self.local == "all":
            return model.everything()
        if self.local == "head":
            return model.last(1, "algo.local")
        return model.batch_norm() if self.local == "batchnorm" else model.nothing()

    def _refuse(self, modifier: Modifier, context: BindContext) -> None:
        """Combinations that make no sense on this model, with the reason."""
        name = modifier.name
        if self.shared.size == 0:
            raise BadInput(f"modifier={name}: nothing leaves the client under algo={self.name}")
        if modifier.where.size == 0:
            where = f"its layers hold nothing that leaves the client under algo={self.name}"
            raise BadInput(f"modifier={name}: {where}")
        if modifier.own_steps:
            self._refuse_own_steps(name)
        reason = modifier.needs.no_momentum
        fits = not reason or context.momentum == 0
        require(fits, "client.momentum", context.momentum, f"must be 0 with {name}: {reason}")
        if modifier.needs.global_model and any(one.personal for one in self.modifiers.values()):
            reason = f"it needs a global model, which the second phase of {self.name} has not"
            raise BadInput(f"modifier={name}: {reason}")

    def _refuse_own_steps(self, name: str) -> None:
        """(w - w_k) / (eta * ||a||_1) takes one solver and one rate eta for all parameters."""
        needing = [other for other, one in self.modifiers.items() if one.needs.linear_solver]
        if self.aggregate.needs_linear_solver:
            needing.insert(0, self.name)
        if needing:
            reason = f"{needing[0]} reads a mean gradient off the local update, which takes the"
            raise BadInput(f"modifier={name}: {reason} same optimizer and rate for all layers")

    def _resolved_scoring(self) -> str:
        if not self.personal:
            return "global"
        scoring = "per_client" if self.scoring in ("", "global") else self.scoring
        fits = scoring != "avg_bn" or self.local in ("batchnorm", "statistics")
        words = "must be per_client or mean_acc: only batch norm can be averaged"
        require(fits, "algo.scoring", scoring, words)
        return scoring

    @property
    def uses_rounds(self) -> bool:
        """Whether a part of it reads the number of rounds of the whole run."""
        parts = (self.aggregate, self.server_opt, self.local_train, *self.modifiers.values())
        return any(getattr(part, "uses_rounds", False) for part in parts)

    @property
    def keeps_buffers(self) -> bool:
        """Whether batch-norm statistics stay on the client."""
        return self.local in ("statistics", "batchnorm", "all")

    @property
    def keeps_part(self) -> bool:
        """Whether clients keep parameters or statistics. FedBN without batch norm does not."""
        return self.kept.size > 0 or (self.keeps_buffers and self.has_statistics)

    @property
    def personal(self) -> bool:
        """Whether clients hold models of their own."""
        return self.keeps_part or any(one.personal for one in self.modifiers.values())


def build(algo: dict[str, Any], client: ClientSettings, server_weights: str | None) -> Algorithm:
    """An algorithm from its checked section of the configuration."""
    _check_bases(algo)
    modifiers: dict[str, Modifier] = algo["modifiers"]
    weights, local, scoring = server_weights or algo["weights"], algo["local"], algo.get("scoring")
    require_known("algo.weights", weights, WEIGHTS)
    require_known("algo.local", local, LOCAL_PARTS)
    if scoring is not None:
        require_known("algo.scoring", scoring, SCORINGS)
    _refuse_repetition(modifiers)
    _refuse_two_corrections(modifiers)
    projections = [one.projection_size for one in modifiers.values() if one.projection_size]
    return Algorithm(
        name=algo["name"],
        weights=weights,
        aggregate=algo["aggregate"],
        server_opt=algo["server_opt"],
        local=local,
        local_train=algo["local_train"],
        pooled=algo["pooled"],
        modifiers=dict(sorted(modifiers.items(), key=lambda item: (item[1].order, item[0]))),
        scoring=scoring or "",
        projection=projections[0] if projections else None,
        caveats=_refuse_adaptive(algo, client),
    )


def _check_bases(algo: dict[str, Any]) -> None:
    for slot, base in BASES.items():
        chosen = algo[slot] if slot == "modifiers" else {"": algo[slot]}
        for name, one in chosen.items():
            key = ".".join(filter(None, ["algo", slot, name, "_target_"]))
            given = f"{type(one).__module__}.{type(one).__qualname__}"
            rule = f"must be a class that extends fedbench.{base.__name__}"
            require(isinstance(one, base), key, given, rule)


def _refuse_repetition(modifiers: dict[str, Modifier]) -> None:
    seen: dict[type, str] = {}
    for name, modifier in modifiers.items():
        first = seen.setdefault(type(modifier), name)
        if first != name:
            raise BadInput(f"modifier={name}: the algorithm has this correction already, '{first}'")


def _refuse_two_corrections(modifiers: dict[str, Modifier]) -> None:
    """SCAFFOLD and FedDyn estimate the same difference: both would subtract it twice."""
    correcting = [name for name, modifier in modifiers.items() if overrides(modifier, "shift")]
    if len(correcting) > 1:
        first, second = correcting[:2]
        raise BadInput(f"modifier={second}: '{first}' of this algorithm corrects the same gradient")


def _refuse_adaptive(algo: dict[str, Any], client: ClientSettings) -> list[str]:
    """(w - w_k) / (eta * K) is a mean gradient only for a linear solver: not with Adam."""
    needing = [name for name, one in algo["modifiers"].items() if one.needs.linear_solver]
    if algo["aggregate"].needs_linear_solver:
        needing.insert(0, algo["name"])
    if not needing or client.optimizer == "sgd":
        return []
    reason = f"{needing[0]} reads a mean gradient off the local update, which only sgd leaves there"
    if not algo["allow_adaptive"]:
        words = f"must be sgd: {reason}; algo.allow_adaptive=true runs it all the same"
        raise bad_value("client.optimizer", client.optimizer, words)
    return [f"adaptive client optimizer ({client.optimizer}) although {reason}"]
