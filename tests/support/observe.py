"""Looking at what happens inside a client's work, without changing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedbench.algorithms.context import LocalRun, Memory
from fedbench.algorithms.modifier import Modifier
from fedbench.training.federation import Federation
from support import experiments

VECTORS = {"grad": lambda local: local.model.g, "update": lambda local: local.update}
Look = Callable[[LocalRun, Memory, Tensor], None]


@dataclass
class Watch(Modifier):
    """Calls a function after every local step."""

    order = 99
    look: Callable[[LocalRun], None]

    def stepped(self, local, memory):
        self.look(local)


def every_step(look: Callable[[LocalRun], None], *overrides: str) -> Federation:
    """A federation that shows every local step."""
    parts = experiments.parts(*overrides)
    parts.unbound.modifiers["watch"] = Watch(look)
    return experiments.assemble(parts)


def after(made: Federation, hook: str, name: str, look: Look) -> None:
    """Show what one modifier's hook does: `look` gets the gradient (or update) as it was before,
    too.
    """
    hooks = made.trainer.hooks[hook]
    (place,) = [place for place, (piece, _) in enumerate(hooks) if piece == name]
    original = hooks[place][1]

    def watched(local: LocalRun, memory: Memory) -> None:
        before = VECTORS[hook](local).clone()
        original(local, memory)
        look(local, memory, before)

    hooks[place] = (name, watched)
