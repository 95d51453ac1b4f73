"""Small experiments whose steps are recorded and replayed, or not."""

from __future__ import annotations

import copy

from fedbench.runs.prepared import PreparedRun
from fedbench.training.client import Trainer, make_fused_optimizer
from fedbench.training.federation import Federation
from support import experiments
from support.replay import ReplayRecorder

SMALL = (
    "client.batch_size=8",
    "client.epochs=2",
    "rounds=3",
    "data.subset=80",
    "partition.clients=3",
)


def parts(*words: str) -> PreparedRun:
    base = () if any(word.startswith("model") for word in words) else experiments.PLAIN
    return experiments.parts(*base, *SMALL, *words)


def federation(made: PreparedRun, recorder: ReplayRecorder | None) -> Federation:
    """With the optimizers of a GPU, and with steps that are recorded if there is a recorder."""
    built = experiments.assemble(copy.deepcopy(made))
    old = built.trainer
    trainer = Trainer(
        built.model,
        old.train,
        old.sampler,
        old.settings,
        built.algorithm,
        old.seed,
        gradient_norms=old.gradient_norms,
        recorder=recorder,
    )
    trainer.fused_optimizer = make_fused_optimizer(built.model.parameter, old.settings)
    built.trainer = built.clients.trainer = trainer
    return built


def outcome(built: Federation) -> tuple[str, list[dict[str, str]]]:
    """The exact bits of the state, and the numbers of all rounds and clients."""
    numbers = []
    for record in built.rounds():
        # As text, because a run that breaks down has numbers that equal nothing.
        kept = {key: repr(value) for key, value in record.numbers.items() if key != "seconds"}
        numbers.append({**kept, "clients": str(record.clients)})
    return experiments.state_digest(built), numbers
