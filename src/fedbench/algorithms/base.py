"""What an algorithm is: slots that each answer one question, and modifiers that each override a few hooks.

The engine calls the hooks in the order in which they stand here. An update is always "after minus before". State is
returned by hooks and kept by the engine, keyed by client and modifier: a modifier object itself never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedbench.flat import FlatModel, Selection

if TYPE_CHECKING:
    from fedbench.federation import Federation

State = dict[str, Tensor]


@dataclass(frozen=True)
class Round:
    """The facts of one round, computed once and passed to every piece. Lists follow the order of the cohort."""

    index: int  # counted from 0
    cohort: list[int]
    samples: list[int]  # n_k
    weights: list[float]  # p_k over the cohort (or uniform): they sum to one
    shares: list[float]  # the same weights over all N clients, for the cohort's members
    lr: float
    steps: list[int]  # tau_k, local mini-batch updates
    norms: list[float]  # ||a_k||_1, what the local solver makes of unit gradients
    momentum: float = 0.0
    proximal: float = 0.0


@dataclass
class Local:
    """One client's work in one round, as the hooks see it."""

    client: int
    samples: int
    steps: int
    norm: float
    lr: float
    model: FlatModel  # model.w is the iterate, model.g the gradient of the current step
    before: Tensor  # the parameters that the client started from
    step: int = 0
    path: Tensor | None = None  # after minus before, of the local path itself
    update: Tensor | None = None  # what is sent: the path, as the `update` hooks leave it


@dataclass
class Memory:
    """What one modifier may read about itself while a client works."""

    server: State
    client: State
    scratch: State = field(default_factory=dict)  # lives for this client and this round only


@dataclass
class Finished:
    """What a modifier leaves behind when a client is done."""

    client: State = field(default_factory=dict)  # the client's new memory
    upload: Tensor | None = None  # reduced over the cohort with `upload_weights`
    numbers: list[float] = field(default_factory=list)  # for the record, named by `records`


class Modifier:
    """Hooks with no-op defaults. A subclass is a dataclass of its hyper-parameters."""

    order: ClassVar[int] = 0  # modifiers act in this order, whatever the order on the command line
    needs_linear_solver: ClassVar[bool] = False  # its mathematics reads a mean gradient off the local path
    records: ClassVar[tuple[str, ...]] = ()  # columns that it adds to the metrics, a number a client each

    where: Selection  # the coordinates that it touches, set by `bind`

    @property
    def active(self) -> bool:
        """False when the settings make it the identity: the engine then leaves it out altogether."""
        return True

    @property
    def proximal(self) -> float:
        """Weight of a pull towards the received model, which changes what the local solver accumulates."""
        return 0.0

    def bind(self, model: FlatModel, shared: Selection, key: str) -> None:
        """Resolve `where` on this model, among the parameters that leave the client. `key` is for messages."""
        self.where = shared

    def extra_floats(self) -> tuple[int, int]:
        """Floats down and up for each client and round, on top of the model."""
        return 0, 0

    def upload_size(self) -> int:
        """Length of the vector that `finish` uploads."""
        return 0

    def init_server(self, model: FlatModel) -> State:
        return {}

    def init_client(self, model: FlatModel) -> State:
        """The memory of a client that has never taken part."""
        return {}

    def num_steps(self, federation: Federation, index: int, cohort: list[int], steps: list[int]) -> list[int]:
        """Local steps of every cohort member; a client with none is left out of the round."""
        return steps

    def begin(self, local: Local, memory: Memory) -> None:
        """Before the first step: compute into `memory.scratch` what stays the same during the round."""

    def grad(self, local: Local, memory: Memory) -> None:
        """After backward, before the optimizer: change `local.model.g` in place."""

    def update(self, local: Local, memory: Memory) -> None:
        """After local training: change `local.update` in place."""

    def finish(self, local: Local, memory: Memory) -> Finished:
        return Finished(client=memory.client)

    def upload_weights(self, facts: Round) -> list[float]:
        """Coefficients of the cohort's uploads in their sum."""
        return facts.weights

    def server(self, facts: Round, state: State, uploaded: Tensor | None) -> State:
        """After the server step: the new server state, from the reduced upload."""
        return state


def overrides(modifier: Modifier, hook: str) -> bool:
    """Whether this modifier does anything at a hook, so that the hot path calls only those that do."""
    return getattr(type(modifier), hook) is not getattr(Modifier, hook)


def chain(modifiers: dict[str, Modifier], hook: str) -> list[tuple[str, Callable]]:
    return [(name, getattr(piece, hook)) for name, piece in modifiers.items() if overrides(piece, hook)]
