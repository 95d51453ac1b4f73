"""What an algorithm is: slots that each answer one question, and modifiers that each override a few
hooks.

The engine calls the hooks in the order in which they stand here. An update is always "after minus
before". State is returned by hooks and kept by the engine, keyed by client and modifier: a modifier
object itself never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fedbench.core.flat_model import FlatModel, Selection

if TYPE_CHECKING:
    from fedbench.training.client import Trainer
    from fedbench.training.federation import Federation

State = dict[str, Tensor]


@dataclass(frozen=True)
class Scene:
    """What a modifier may know about the experiment when it is bound to it."""

    model: FlatModel
    clients: int
    classes: int
    rounds: int
    seed: int
    momentum: float = 0.0  # of the clients' optimizer
    shared: Selection | None = None  # the parameters that leave the client
    aggregate: Any = None  # the slot's value
    batch_size: int | str | None = None  # of the clients' steps


@dataclass(frozen=True)
class Round:
    """The facts of one round, computed once and passed to every piece. Lists follow the order of
    the cohort.
    """

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
    rounds: int = 1  # of the whole run
    server_lr: float = 1.0
    asked: list[int] = field(
        default_factory=list
    )  # the cohort, and the clients that were then left out of it
    notes: dict[str, list[float]] = field(
        default_factory=dict
    )  # for the record, a number for each of `asked`


@dataclass
class Batch:
    """One mini-batch on its way through the network, for the hooks that work on the loss."""

    x: Tensor
    y: Tensor
    logits: Tensor
    each: Tensor  # the loss of every example
    embedding: Tensor | None  # the input of the head, for modifiers that say they need it


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
    own: Tensor  # the client's training examples
    trainer: Trainer  # for gradients outside the local steps
    round: int = 0
    shared_steps: int = 0  # of the steps, those in which the parameters move that leave the client
    shared_frozen: bool = False  # whether they stand still in the current step
    step: int = 0
    batch: Batch | None = None
    notes: dict[str, float] = field(default_factory=dict)  # the client's own of the round's notes
    path: Tensor | None = None  # after minus before, of the local path itself
    update: Tensor | None = None  # what is sent: the path, as the `update` hooks leave it

    @property
    def labels(self) -> Tensor:
        return self.trainer.train.y[self.own]

    @property
    def epoch(self) -> int:
        """How often the client has been through its examples in this round, counted from 0."""
        return self.step // self.trainer.sampler.batches_per_epoch(self.samples)


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
    chosen: list[int] = field(
        default_factory=list
    )  # for the record: step numbers, named by `records_steps`


@dataclass
class Allocation:
    """How many local steps every member of a cohort takes, and numbers about it for the record."""

    steps: list[int]
    notes: dict[str, list[float]] = field(default_factory=dict)


class Modifier:
    """Hooks with no-op defaults. A subclass is a dataclass of its hyper-parameters."""

    order: ClassVar[int] = 0  # modifiers act in this order, whatever the order on the command line
    update_first: ClassVar[bool] = (
        False  # its `update` puts a new one together, so it comes before all others'
    )
    needs_linear_solver: ClassVar[bool] = (
        False  # its mathematics reads a mean gradient off the local path
    )
    needs_global_model: ClassVar[bool] = False  # it compares clients that start from the same model
    needs_embedding: ClassVar[bool] = False  # its `loss` reads `local.batch.embedding`
    personal: ClassVar[bool] = (
        False  # clients have models of their own although all parameters leave them
    )
    collects: ClassVar[bool] = False  # `server` gets every client's upload instead of their sum
    records: ClassVar[
        tuple[str, ...]
    ] = ()  # columns that it adds to the metrics, a number a client each
    records_steps: ClassVar[str] = ""  # a column of step numbers a client

    where: Selection  # the coordinates that it touches, set by `bind`

    @property
    def active(self) -> bool:
        """False when the settings make it the identity: the engine then leaves it out
        altogether.
        """
        return True

    @property
    def remembers(self) -> bool:
        """Whether clients have a memory of it: they then stay with one rank."""
        return overrides(self, "init_client")

    @property
    def most_steps(self) -> int | None:
        """The largest number of local steps that it can deal with, if there is one."""
        return None

    def check_room(self, steps: int, key: str, value: int) -> None:
        """Refuse local steps of which it must keep more than there is room for, with the key that
        asks for them.
        """

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The settings as they enter a run's identity: without those that cannot change a
        number.
        """
        return fields

    @property
    def needs_plain_sgd(self) -> str:
        """Why client momentum makes no sense with it, or nothing."""
        return ""

    @property
    def projection_size(self) -> int | None:
        """Width of the projection that it wants between features and head, if any."""
        return None

    @property
    def proximal(self) -> float:
        """Weight of a pull towards the received model, which changes what the local solver
        accumulates.
        """
        return 0.0

    def bind(self, scene: Scene, key: str) -> None:
        """Resolve `where` on this model, among the parameters that leave the client. `key` is for
        messages.
        """
        self.where = scene.shared

    def extra_floats(self) -> tuple[int, int]:
        """Floats down for each client that is asked and up for each that trains, on top of the
        model.
        """
        return 0, 0

    def traffic(self, facts: Round) -> tuple[int, int]:
        """Floats down and up in a round, on top of the models."""
        down, up = self.extra_floats()
        return down * len(facts.asked), up * len(facts.cohort)

    def extra_gradients(self, facts: Round) -> int:
        """Gradients of single examples in a round, on top of those of the local steps."""
        return 0

    def upload_size(self) -> int:
        """Length of the vector that `finish` uploads."""
        return 0

    def init_server(self, model: FlatModel) -> State:
        return {}

    def init_client(self, model: FlatModel) -> State:
        """The memory of a client that has never taken part."""
        return {}

    def num_steps(
        self, federation: Federation, index: int, cohort: list[int], steps: list[int]
    ) -> Allocation:
        """Local steps of every cohort member; a client with none is left out of the round. All
        ranks call it.
        """
        return Allocation(steps)

    def shift(self, memory: Memory, gradient: Tensor) -> None:
        """Add to a gradient at the received model, in place, what this modifier corrects it by."""

    def start(self, federation: Federation, clients: list[int]) -> dict[int, Tensor]:
        """Shared parameters that clients start from where they are not the server's. All ranks call
        it.

        Needed are only those of the clients that this rank owns.
        """
        return {}

    def begin(self, local: Local, memory: Memory) -> None:
        """Before the first step: compute into `memory.scratch` what stays the same during the
        round.
        """

    def loss(self, local: Local, memory: Memory, loss: Tensor) -> Tensor:
        """After the forward pass, with `local.batch`: the loss to minimise instead of `loss`."""
        return loss

    def probe(self, local: Local, memory: Memory) -> None:
        """Before backward, with the graph alive: gradients of anything else go to
        `memory.scratch`.
        """

    def grad(self, local: Local, memory: Memory) -> None:
        """After backward, before the optimizer: change `local.model.g` in place."""

    def stepped(self, local: Local, memory: Memory) -> None:
        """After the optimizer's step."""

    def update(self, local: Local, memory: Memory) -> None:
        """After local training: change `local.update` in place."""

    def finish(self, local: Local, memory: Memory) -> Finished:
        return Finished(client=memory.client)

    def upload_weights(self, facts: Round) -> list[float]:
        """Coefficients of the cohort's uploads in their sum."""
        return facts.weights

    def server(self, facts: Round, state: State, uploaded: Tensor | None) -> State:
        """After the server step: the new server state, from the reduced upload (a row a client if
        it `collects`).
        """
        return state


def overrides(modifier: Modifier, hook: str) -> bool:
    """Whether this modifier does anything at a hook, so that the hot path calls only those that
    do.
    """
    return getattr(type(modifier), hook) is not getattr(Modifier, hook)


def chain(modifiers: dict[str, Modifier], hook: str) -> list[tuple[str, Callable]]:
    """The modifiers that do something at a hook, in the order in which they act."""
    acting = [(name, piece) for name, piece in modifiers.items() if overrides(piece, hook)]
    if hook == "update":
        acting.sort(key=lambda item: not item[1].update_first)
    return [(name, getattr(piece, hook)) for name, piece in acting]


def masked(scene: Scene, layers: int | None, key: str, skip: int = 0) -> Selection:
    """The last layers (None: all), or those before the last `skip` ones, without what never leaves
    the client.
    """
    model = scene.model
    chosen = model.everything() if layers is None else model.last(layers, f"{key}.layers", skip)
    return model.without(chosen, model.without(model.everything(), scene.shared))
