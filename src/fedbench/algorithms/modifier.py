"""What a method is made of: hooks that the engine calls, in the order in which they are listed.

An update is always "after minus before". State is returned by hooks and kept by the engine, keyed
by client and modifier: a modifier object never changes, and `bind` returns a copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from fedbench.algorithms.context import (
    BindContext,
    ClientResult,
    Clients,
    LocalRun,
    Memory,
    RoundPlan,
    State,
    StepPlan,
)
from fedbench.core.errors import require
from fedbench.core.fields import check_fields, count
from fedbench.core.flat_model import FlatModel, Selection


@dataclass(frozen=True)
class Needs:
    """What a method's mathematics rests on. A combination without it is refused, with the reason.

    - `linear_solver`: a mean gradient is read off the local update, which only SGD leaves there;
    - `global_model`: clients are compared that start from the same model;
    - `embedding`: `loss` reads `local.batch.embedding`;
    - `no_momentum`: why client momentum makes no sense with it.
    """

    linear_solver: bool = False
    global_model: bool = False
    embedding: bool = False
    no_momentum: str = ""


class Modifier:
    """Hooks with no-op defaults. A subclass is a dataclass of its hyper-parameters.

    Ranges are declared on the fields: `mu: float = number(0.01, at_least=0)`.
    """

    order: ClassVar[int] = 0  # modifiers act in this order, whatever the order on the command line
    update_first: ClassVar[bool] = False  # its `update` replaces the update: it precedes all others
    personal: ClassVar[bool] = False  # clients have models of their own
    # It reads the number of rounds: a finished run with it cannot be extended by more.
    uses_rounds: ClassVar[bool] = False
    collects: ClassVar[bool] = False  # `server` gets every client's upload instead of their sum
    records: ClassVar[tuple[str, ...]] = ()  # columns for the metrics, a number a client each
    records_steps: ClassVar[str] = ""  # a column of step numbers a client

    # Set by `bind`.
    name: str  # in `algo.modifiers`
    context: BindContext
    where: Selection  # the coordinates that it touches

    @property
    def needs(self) -> Needs:
        return Needs()

    @property
    def active(self) -> bool:
        """False when the settings make it the identity: the engine then leaves it out."""
        return True

    @property
    def own_steps(self) -> bool:
        """Whether some parameters take other steps than the clients' optimizer at their rate."""
        return False

    @property
    def capturable(self) -> bool:
        """Whether its hooks inside of steps may be recorded once and replayed for all clients.

        A replay knows nothing of Python: such hooks (`loss`, `probe`, `grad`, `stepped`) must not
        read numbers of `local` that change (`lr`, `step`, `round`, `client` ...), nor values of
        tensors, and may write only to `memory.scratch`, `local.model` and `local.batch`. They may
        read `memory` and `local.before`. Who does not say so is not recorded: docs/gpu.md.
        """
        return False

    @property
    def remembers(self) -> bool:
        """Whether clients have a memory of it: they then stay with one rank."""
        return overrides(self, "init_client")

    @property
    def projection_size(self) -> int | None:
        """Width of the projection that it wants between features and head, if any."""
        return None

    @property
    def proximal(self) -> float:
        """Weight of a pull towards the received model, which the local solver accumulates."""
        return 0.0

    def bind(self, context: BindContext, key: str) -> Self:
        """A copy for this experiment; the parameters concerned are all that leave the client.

        `key` is the name of the modifier's section in messages.
        """
        check_fields(self, key)
        bound = dataclasses.replace(self)  # type: ignore[type-var]
        bound.name = key.rpartition(".")[2]
        bound.context = context
        bound.where = context.shared
        return bound

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The settings as they enter a run's id: without those that cannot change a number."""
        return fields

    def check_steps(self, steps: int | None, key: str, value: int) -> None:
        """Refuse more local steps than it can keep; None: their number is not known beforehand.

        `key` and `value` are what the user asks for the steps with.
        """

    def step_memory(self, steps: int) -> int:
        """Bytes that it needs where the model is, for what it keeps of a client's local steps."""
        return 0

    @property
    def upload_size(self) -> int:
        """Length of the vector that `finish` uploads."""
        return 0

    def traffic(self, plan: RoundPlan) -> tuple[int, int]:
        """Floats down and up in a round, on top of the models."""
        return 0, self.upload_size * len(plan.cohort)

    def extra_gradients(self, plan: RoundPlan) -> int:
        """Gradients of single examples in a round, on top of those of the local steps."""
        return 0

    def init_server(self, model: FlatModel) -> State:
        return {}

    def measure(self, clients: Clients) -> State:
        """Before the first round: what of the server's state must be measured."""
        return {}

    def facts(self, state: State) -> dict[str, float]:
        """What of the server's state belongs into the summary, under names for a reader."""
        return {}

    def init_client(self, model: FlatModel) -> State:
        """The memory of a client that has never taken part."""
        return {}

    def num_steps(
        self, clients: Clients, index: int, cohort: list[int], steps: list[int]
    ) -> StepPlan:
        """Local steps of every cohort member in round `index`; a client with none is left out."""
        return StepPlan(steps)

    def shift(self, memory: Memory, gradient: Tensor) -> None:
        """Add to a gradient at the received model, in place, what this modifier corrects it by."""

    def start(self, clients: Clients, index: int, members: list[int]) -> dict[int, Tensor]:
        """Shared parameters from which members start where they are not the server's.

        Needed are only those of the clients that this rank owns.
        """
        return {}

    def survey(self, clients: Clients) -> State:
        """Before the clients work: what each finds in its `memory.scratch`, the same for all."""
        return {}

    def begin(self, local: LocalRun, memory: Memory) -> None:
        """Before the first step: put into `memory.scratch` what stays the same in the round."""

    def loss(self, local: LocalRun, memory: Memory, loss: Tensor) -> Tensor:
        """After the forward pass, with `local.batch`: the loss to minimise instead of `loss`."""
        return loss

    def probe(self, local: LocalRun, memory: Memory) -> None:
        """Before backward, with the graph alive: gradients of anything else."""

    def grad(self, local: LocalRun, memory: Memory) -> None:
        """After backward, before the optimizer: change `local.model.g` in place."""

    def stepped(self, local: LocalRun, memory: Memory) -> None:
        """After the optimizer's step."""

    def update(self, local: LocalRun, memory: Memory) -> None:
        """After local training: change `local.update` in place."""

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        """The client's new memory, what it uploads, and numbers for the record."""
        return ClientResult(client=memory.client)

    def upload_weights(self, plan: RoundPlan) -> list[float]:
        """Coefficients of the cohort's uploads in their sum."""
        return plan.weights

    def server(self, plan: RoundPlan, state: State, uploaded: Tensor) -> State:
        """After the server step: the new server state, from the summed upload.

        With `collects`, `uploaded` has a row a client instead.
        """
        return state


def overrides(modifier: Modifier, hook: str) -> bool:
    """Whether a modifier does anything at a hook: the hot path calls only those that do."""
    return getattr(type(modifier), hook) is not getattr(Modifier, hook)


def chain(modifiers: dict[str, Modifier], hook: str) -> list[tuple[str, Callable]]:
    """The modifiers that do something at a hook, in the order in which they act."""
    acting = [(name, one) for name, one in modifiers.items() if overrides(one, hook)]
    if hook == "update":
        acting.sort(key=lambda item: not item[1].update_first)
    return [(name, getattr(one, hook)) for name, one in acting]


def last_layers(context: BindContext, layers: int | None, key: str, skip: int = 0) -> Selection:
    """The last layers (None: all), or those before the last `skip` ones, that leave the client.

    `last_layers(context, 2, key)` is the head and the layer before it.
    """
    model = context.model
    if layers is None:
        chosen = model.everything()
    else:
        count = len(model.layers)
        words = f"must be at most {count}: the model has {count} layers with weights"
        require(skip <= count, f"{key}.skip", skip, words)
        chosen = model.last(layers, f"{key}.layers", skip)
    return model.without(chosen, model.without(model.everything(), context.shared))


@dataclass(kw_only=True)
class OnLastLayers(Modifier):
    """A modifier of the last layers, or of those before the last `skip` ones."""

    layers: int = count(2, at_least=0)
    skip: int = count(0, at_least=0)  # layers at the end that are left out before `layers`

    def bind(self, context: BindContext, key: str) -> Self:
        bound = super().bind(context, key)
        bound.where = last_layers(context, self.layers, key, self.skip)
        return bound
