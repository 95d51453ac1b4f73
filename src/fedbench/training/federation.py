"""The only round loop: cohort -> local work -> aggregate -> server step -> evaluate -> record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.algorithms.aggregate import solver_norm
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.modifier import Round, Scene, chain
from fedbench.config.schema import Scalars
from fedbench.core.flat_model import FlatModel
from fedbench.core.seeding import torch_generator
from fedbench.data.batches import Examples, Sampler
from fedbench.parallel.exchange import Exchange, gather
from fedbench.parallel.group import BLOCK_ELEMENTS, Group, balance
from fedbench.training.client import Loss, Trainer
from fedbench.training.divergence import LossLimits, initial_loss, why_diverged, why_test_diverged
from fedbench.training.evaluation import Evaluator, Score
from fedbench.training.personalisation import score_clients
from fedbench.training.round_metrics import Ledger, Record, Totals
from fedbench.training.state import ExperimentState

MOST_ROWS = 2**14  # of a block: a very small model needs no larger one


class Federation:
    """One experiment: its parts, its state, and the loop over rounds."""

    def __init__(
        self,
        model: FlatModel,
        train: Examples,
        test: Examples,
        shards: list[Tensor],  # the training indices of every client
        algorithm: Algorithm,
        settings: Scalars,
        group: Group,
        classes: int,
        loss: Loss = functional.cross_entropy,
        local_tests: (
            list[Tensor] | None
        ) = None,  # indices of `train` that are every client's own test examples
    ):
        self.model, self.algorithm, self.settings, self.group, self.classes = (
            model,
            algorithm,
            settings,
            group,
            classes,
        )
        self.shards = [torch.cat(shards).sort().values] if algorithm.pooled else shards
        self.sizes = [len(own) for own in self.shards]
        self.local_tests = (
            [torch.cat(local_tests)] if local_tests and algorithm.pooled else local_tests
        )
        client = settings.client
        algorithm.bind(
            Scene(model, len(self.shards), classes, settings.rounds, settings.seed, client.momentum)
        )
        self.sampler = Sampler(
            settings.seed, client.batch_size, client.epochs, client.steps, model.has_batch_norm
        )
        self.planned = [self.sampler.planned_steps(size) for size in self.sizes]
        self.eligible = [k for k, steps in enumerate(self.planned) if steps > 0]
        norms = settings.diagnostics.gradient_norms
        self.trainer = Trainer(
            model, train, self.sampler, client, algorithm, settings.seed, loss, norms
        )
        self.evaluator = Evaluator(model, test, settings.eval.batch_size, group, classes, loss)
        self.owners = balance(self.sizes, group.size)
        self.state = ExperimentState(model, algorithm, self.owners, group)
        self.proximal = sum(piece.proximal for piece in algorithm.modifiers.values())
        self.columns = self._row_layout()
        self.ledger = Ledger(model, algorithm, norms, classes)
        self.limits = LossLimits(model, classes, lambda client: initial_loss(self, client))
        self.totals = Totals()
        self.done = 0

    def rounds(self) -> Iterator[Record]:
        """Run every round that is still to do, one record each."""
        while self.done < self.settings.rounds:
            started = time.perf_counter()
            facts = self.plan(self.done)
            sums, numbers = self.local_work(facts)
            self.server_step(facts, sums, numbers)
            self.done += 1
            record = self.record(facts, numbers)
            due = self.done == self.settings.rounds or self.done % self.settings.eval.every == 0
            if due and not record.diverged:  # a broken model has no accuracy
                record.score = self.evaluate()
                record.diverged = why_test_diverged(self, record)
                record.score = None if record.diverged else record.score
            self.totals.seconds += time.perf_counter() - started
            record.numbers["seconds"] = round(self.totals.seconds, 3)
            yield record
            if record.diverged:
                return

    def plan(self, index: int) -> Round:
        """The facts of a round: who takes part, with which weight, how many steps, at which
        rate.
        """
        settings, cohort = self.settings, self.eligible
        if settings.cohort is not None and settings.cohort < len(cohort):
            generator = torch_generator(settings.seed, "cohort", index)
            chosen = (
                torch.randperm(len(cohort), generator=generator)[: settings.cohort].sort().values
            )
            cohort = [self.eligible[i] for i in chosen.tolist()]
        asked, steps, notes = cohort, [self.planned[k] for k in cohort], {}
        for piece in self.algorithm.modifiers.values():
            allocated = piece.num_steps(self, index, asked, steps)
            steps, notes = allocated.steps, notes | allocated.notes
        cohort = [k for k, count in zip(asked, steps, strict=True) if count > 0]
        return replace(
            self.facts(index, cohort, [count for count in steps if count > 0]),
            asked=asked,
            notes=notes,
        )

    def facts(self, index: int, cohort: list[int], steps: list[int]) -> Round:
        """What follows from who takes part with how many steps."""
        settings, client = self.settings, self.settings.client
        lr = client.rate(index)
        moving = [
            self.trainer.shared_steps(self.sizes[k], count)
            for k, count in zip(cohort, steps, strict=True)
        ]
        return Round(
            index=index,
            cohort=cohort,
            samples=[self.sizes[k] for k in cohort],
            weights=self.weights(cohort, cohort),
            shares=self.weights(cohort, self.eligible),
            lr=lr,
            steps=steps,
            norms=[
                solver_norm(count, lr, client.momentum, self.proximal, client.nesterov)
                for count in moving
            ],
            momentum=client.momentum,
            proximal=self.proximal,
            rounds=settings.rounds,
            server_lr=settings.server.lr,
            asked=cohort,
        )

    def weights(self, members: list[int], population: list[int]) -> list[float]:
        """Aggregation weights of some clients, such that those of the whole population sum to
        one.
        """
        if self.algorithm.weights == "uniform":
            return [1.0 / len(population)] * len(members)
        total = sum(self.sizes[k] for k in population)
        return [self.sizes[k] / total for k in members]

    def local_work(self, facts: Round) -> tuple[dict[str, Tensor], Tensor]:
        """Train the cohort, every rank its share, and sum what the clients send, in client order.

        The cohort is taken in blocks, so that memory does not grow with the number of clients; sums
        go on from one block to the next, so their bits do not depend on it. Clients with a memory
        stay with their rank; others are dealt out anew every round.
        """
        work = zip(facts.samples, facts.steps, strict=True)
        cost = [self.sampler.examples_seen(size, steps) for size, steps in work]
        fixed = self.state.clients_remember
        owners = [self.owners[k] for k in facts.cohort] if fixed else balance(cost, self.group.size)
        self.prepare_starts(facts.cohort)
        factors = {
            name: piece.upload_weights(facts) for name, piece in self.algorithm.modifiers.items()
        }
        factors |= {
            "update": self.algorithm.aggregate.coefficients(facts),
            "buffers": facts.weights,
        }
        sums = {
            name: torch.zeros(span.stop - span.start, dtype=self.state.w.dtype)
            for name, span in self.columns.items()
        }
        collected: dict[str, list[Tensor]] = {name: [] for name in self.collectors}
        numbers = []
        block = max(self.group.size, min(MOST_ROWS, BLOCK_ELEMENTS // max(self.row_size, 1) - 1))
        for start in range(0, len(facts.cohort), block):
            members = range(start, min(start + block, len(facts.cohort)))
            block_owners = [owners[i] for i in members]
            exchange = Exchange(self.group, block_owners, self.row_size, self.state.w.dtype)
            mine = [i for i in members if owners[i] == self.group.rank]
            own_numbers = self._train_mine(facts, mine, exchange.mine)
            exchange.send()
            for name, span in self.columns.items():
                if name in collected:
                    collected[name].append(exchange.rows(span))
                elif span.start < span.stop:
                    exchange.add_to(sums[name], span, [factors[name][i] for i in members])
            numbers.append(gather(self.group, own_numbers, block_owners))
        sums |= {name: torch.cat(rows) for name, rows in collected.items()}
        return sums, torch.cat(numbers)

    def prepare_starts(self, clients: list[int]) -> None:
        """What these clients start from, where it is not the server's model. All ranks take
        part.
        """
        self.state.starts = {}
        for _, start in chain(self.algorithm.modifiers, "start"):
            self.state.starts |= start(self, clients)

    def _row_layout(self) -> dict[str, slice]:
        """What a client sends, side by side in one row: update, buffers, and what each modifier
        uploads.
        """
        sizes = {"update": self.algorithm.shared.size, "buffers": len(self.model.b)}
        if self.algorithm.keeps_buffers:
            sizes["buffers"] = 0
        sizes |= {name: piece.upload_size() for name, piece in self.algorithm.modifiers.items()}
        self.collectors = [
            name for name, piece in self.algorithm.modifiers.items() if piece.collects
        ]
        layout, self.row_size = {}, 0
        for name, size in sizes.items():
            layout[name] = slice(self.row_size, self.row_size + size)
            self.row_size += size
        return layout

    def _train_mine(self, facts: Round, mine: list[int], rows: Tensor) -> Tensor:
        """Train this rank's members of the cohort; fills what each sends, returns their numbers for
        the record.
        """
        numbers = torch.empty(len(mine), self.ledger.width(facts), dtype=torch.float64)
        for row, values, position in zip(rows, numbers, mine, strict=True):
            client = facts.cohort[position]
            before, memories = self.state.receive(client)
            trained = self.trainer(facts, position, self.shards[client], before, memories)
            row[self.columns["update"]] = self.algorithm.shared.read(trained.local.update)
            if not self.algorithm.keeps_buffers:
                row[self.columns["buffers"]] = self.model.b
            for name, left in trained.finished.items():
                if left.upload is not None:
                    row[self.columns[name]] = left.upload
            self.ledger.write(values, trained)
            self.state.remember(client, trained.finished)
        return numbers

    def server_step(self, facts: Round, sums: dict[str, Tensor], numbers: Tensor) -> None:
        state, algorithm = self.state, self.algorithm
        sums = {name: value.to(self.model.device) for name, value in sums.items()}
        weights = algorithm.shared.read(state.w)
        direction, state.server_opt = algorithm.server_opt.step(
            facts, weights, sums["update"], state.server_opt
        )
        algorithm.shared.add(state.w, direction, self.settings.server.lr)
        if not algorithm.keeps_buffers:
            state.b.copy_(sums["buffers"])
            if len(state.counters):  # integers are not averaged: the largest stands
                state.counters.copy_(self.ledger.counters(numbers).max(dim=0).values)
        for name, piece in algorithm.modifiers.items():
            state.server[name] = piece.server(facts, state.server[name], sums[name])

    def record(self, facts: Round, numbers: Tensor) -> Record:
        work = zip(facts.samples, facts.steps, strict=True)
        examples = sum(self.sampler.examples_seen(size, steps) for size, steps in work)
        self.totals.count(facts, self.algorithm, examples, self.state.w.element_size())
        losses = self.ledger.losses(numbers)
        books = {
            "train_loss": (
                float(torch.tensor(facts.samples, dtype=torch.float64) @ losses)
                / sum(facts.samples)
            ),
            "bytes_up": self.totals.bytes_up,
            "bytes_down": self.totals.bytes_down,
            "gradients": self.totals.gradients,
            **self.ledger.means(facts, numbers),
        }
        diverged = why_diverged(self, facts, numbers)
        return Record(
            self.done,
            books,
            clients=self.ledger.rows(facts, numbers, self.sizes),
            diverged=diverged,
        )

    def evaluate(self) -> Score:
        """All scores of the state after a round."""
        score = self._score_test_set()
        if self.local_tests is not None:
            scores = score_clients(self, self.local_tests)
            score.others |= scores.columns()
            score.clients = scores.rows(self.done)
        return score

    def _score_test_set(self) -> Score:
        """Score the global model, or every client's own one where there is no global model."""
        algorithm = self.algorithm
        if algorithm.personal and algorithm.scoring != "avg_bn":
            self.prepare_starts(self.eligible)
            counts = [
                torch.bincount(self.trainer.train.y[own], minlength=self.classes)
                for own in self.shards
            ]
            return self.evaluator.personal(
                self.state.receive, self.owners, counts, algorithm.scoring
            )
        self.load_global()
        score = self.evaluator.score()
        for name, weights in algorithm.server_opt.also_score(self.state.server_opt).items():
            algorithm.shared.write(self.model.w, weights)
            other = self.evaluator.score()
            score.others |= {
                f"test_accuracy_{name}": other.accuracy,
                f"test_loss_{name}": other.loss,
            }
        return score

    def load_global(self) -> None:
        self.prepare_starts(self.eligible)
        self.state.load_global(self.eligible, self.weights(self.eligible, self.eligible))
