"""The only round loop: cohort -> local work -> aggregate -> server step -> evaluate -> record."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.algorithms.aggregate import solver_norm
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import RoundPlan
from fedbench.algorithms.layer_norms import LayerNorms
from fedbench.algorithms.modifier import chain
from fedbench.config.schema import Scalars
from fedbench.core.flat_model import FlatModel, Selection
from fedbench.core.seeding import torch_generator
from fedbench.data.batches import Examples
from fedbench.parallel.exchange import Exchange, gather
from fedbench.parallel.group import BLOCK_ELEMENTS, Group, balance
from fedbench.partitions.iid import Iid
from fedbench.training.client import Loss, Trainer, make_sampler
from fedbench.training.clients import FederationClients
from fedbench.training.divergence import DivergenceCheck
from fedbench.training.evaluation import Evaluator, Score
from fedbench.training.graph_steps import CudaRecorder
from fedbench.training.personalisation import LocalScores, score_clients
from fedbench.training.round_metrics import ClientNumbers, Record, Totals, update_variance
from fedbench.training.state import ExperimentState
from fedbench.training.stopping import StopRule

MOST_ROWS = 2**14  # of a block: a very small model needs no larger one


class Federation:
    """One experiment: its parts, its state, and the loop over rounds.

    `algorithm` is bound to `model`. `shards` has the training indices of every client, and
    `local_tests` those of its own test examples, if clients have any. `validation` are examples
    that no client trains on, if there are any.
    """

    def __init__(
        self,
        model: FlatModel,
        train: Examples,
        test: Examples,
        shards: list[Tensor],
        algorithm: Algorithm,
        settings: Scalars,
        group: Group,
        classes: int,
        loss: Loss = functional.cross_entropy,
        local_tests: list[Tensor] | None = None,
        validation: Examples | None = None,
    ):
        if algorithm.pooled:  # one client has everything
            shards = [torch.cat(shards).sort().values]
            local_tests = [torch.cat(local_tests)] if local_tests else local_tests
        self.model = model
        self.algorithm = algorithm
        self.settings = settings
        self.group = group
        self.classes = classes
        self.shards = shards
        self.sizes = [len(own) for own in shards]
        self.local_tests = local_tests
        self.modifiers = algorithm.modifiers
        self.proximal = sum(modifier.proximal for modifier in self.modifiers.values())

        client, norms = settings.client, settings.diagnostics.gradient_norms
        self.sampler = make_sampler(settings, model.has_batch_norm)
        self.planned = [self.sampler.planned_steps(size) for size in self.sizes]
        self.eligible = [k for k, steps in enumerate(self.planned) if steps > 0]
        self.owners = balance(self.sizes, group.size)
        recorder, precision = None, settings.runtime.precision
        if model.device.type == "cuda" and settings.runtime.graph == "auto":
            recorder = CudaRecorder(model.device)
        self.trainer = Trainer(
            model,
            train,
            self.sampler,
            client,
            algorithm,
            settings.seed,
            loss,
            norms,
            recorder,
            precision,
        )
        evaluated = settings.eval.batch_size
        self.evaluator = Evaluator(model, test, evaluated, group, classes, loss, precision)
        self.validator: Evaluator | None = None
        if validation is not None:
            self.validator = Evaluator(
                model, validation, evaluated, group, classes, loss, precision
            )
        self.state = ExperimentState(model, algorithm, self.owners, group)
        self.clients = FederationClients(
            shards,
            self.owners,
            group,
            self.state,
            self.trainer,
            cohort_weights=lambda cohort: self.weights(cohort, cohort),
            iid_gradient_norms=self.iid_gradient_norms,
        )
        factor = settings.stop.loss_factor
        self.divergence = DivergenceCheck(
            model, self.state, self.evaluator, train, shards, classes, factor
        )
        self.columns = self._row_layout()
        # Whether clients' updates are computed where they are sent from. A modifier may change or
        # keep an update, and the rows are soon written over.
        whole = algorithm.shared.size == model.size and model.device.type == "cpu"
        self.updates_in_rows = whole and not self.modifiers
        self.client_numbers = ClientNumbers(
            model, algorithm, settings.diagnostics, self.divergence.guessing
        )
        self.totals = Totals()
        self.stop = StopRule(settings.stop)
        self.done = 0

    def rounds(self) -> Iterator[Record]:
        """Run every round that is still to do, one record each."""
        if self.done == 0:
            self.measure()
        while self.done < self.settings.rounds:
            started = time.perf_counter()
            plan = self.plan_round(self.done)
            sums, numbers = self.local_work(plan)
            self.server_step(plan, sums, numbers)
            self.done += 1
            # Before anything that depends on the model: one that is broken on one rank alone would
            # send the ranks different ways, where they wait for each other.
            self.state.compare_ranks(self.done)
            record = self.record(plan, numbers)
            if "mean update" in sums:
                record.numbers |= update_variance(plan, numbers, sums["mean update"])
            due = self.done == self.settings.rounds or self.done % self.settings.eval.every == 0
            if due and not record.diverged:  # a broken model has no accuracy
                record.score = self.evaluate()
                record.diverged = self.divergence.after_evaluation(
                    record.score, record.clients, self.load_global
                )
                record.score = None if record.diverged else record.score
            # The last round may be scored although `eval.every` does not ask for it.
            if record.score is not None and self.done % self.settings.eval.every == 0:
                record.stopped = self.stop.after_evaluation(record.score)
            self.totals.seconds += time.perf_counter() - started
            record.numbers["seconds"] = round(self.totals.seconds, 3)
            yield record
            if record.diverged or record.stopped:
                return

    def measure(self) -> None:
        """What modifiers must know before the first round. A resumed run has it in its state."""
        started = time.perf_counter()
        for name, measure in chain(self.modifiers, "measure"):
            self.state.server[name] |= measure(self.clients)
        self.totals.seconds += time.perf_counter() - started

    def iid_gradient_norms(
        self, where: Selection, layers: list[slice], rounds: int
    ) -> tuple[Tensor, Tensor]:
        """`Clients.iid_gradient_norms`: by a federation of the same kind, which is then dropped."""
        own, train = torch.cat(self.shards).sort().values, self.trainer.train
        partition = Iid(clients=len(self.eligible))
        split = partition.draw(train.y[own].cpu().numpy(), self.classes, self.settings.seed)
        shards = [own[torch.from_numpy(indices).to(own.device)] for indices in split.client_indices]
        recording = Algorithm(modifiers={"norms": LayerNorms(where, layers)})
        context = next(iter(self.modifiers.values())).context
        self.state.load_server()  # it starts where this one does
        reference = Federation(
            self.model,
            train,
            self.evaluator.test,
            shards,
            recording.bind(context),
            self.settings,
            self.group,
            self.classes,
            self.trainer.loss,
        )
        steps, sums = 0, torch.zeros(2 * len(layers), dtype=torch.float64)
        for index in range(rounds):
            plan = reference.plan_round(index)
            uploads, numbers = reference.local_work(plan)
            reference.server_step(plan, uploads, numbers)
            reference.record(plan, numbers)
            steps += sum(plan.steps)
            sums += reference.client_numbers.recorded(numbers).sum(dim=0)
        self.totals.gradients += reference.totals.gradients
        mean, squares = (sums / steps).view(2, len(layers))
        return mean, (squares - mean.square()).clamp(min=0.0).sqrt()

    def plan_round(self, index: int) -> RoundPlan:
        """Who takes part, with which weight, how many steps, at which rate."""
        invited = self._draw_cohort(index)
        steps = [self.planned[k] for k in invited]
        notes: dict[str, list[float]] = {}
        for modifier in self.modifiers.values():
            allocated = modifier.num_steps(self.clients, index, invited, steps)
            steps, notes = allocated.steps, notes | allocated.notes
        cohort = [k for k, count in zip(invited, steps, strict=True) if count > 0]
        plan = self.plan_for(index, cohort, [count for count in steps if count > 0])
        return replace(plan, invited=invited, notes=notes)

    def _draw_cohort(self, index: int) -> list[int]:
        size = self.settings.cohort
        if size is None or size >= len(self.eligible):
            return self.eligible
        generator = torch_generator(self.settings.seed, "cohort", index)
        drawn = torch.randperm(len(self.eligible), generator=generator)[:size]
        return [self.eligible[i] for i in drawn.sort().values.tolist()]

    def plan_for(self, index: int, cohort: list[int], steps: list[int]) -> RoundPlan:
        """What follows from who takes part with how many steps."""
        client, sizes = self.settings.client, [self.sizes[k] for k in cohort]
        lr = client.rate(index)
        work = list(zip(sizes, steps, strict=True))
        shares = [self.sampler.shares(size, count) for size, count in work]
        moving = [self.trainer.shared_steps(size, count) for size, count in work]
        norms = [  # what leaves the client moves in the last of its steps, or in all
            solver_norm(count, lr, client.momentum, self.proximal, client.nesterov, own[-count:])
            for count, own in zip(moving, shares, strict=True)
        ]
        return RoundPlan(
            index=index,
            cohort=cohort,
            samples=sizes,
            weights=self.weights(cohort, cohort),
            population_weights=self.weights(cohort, self.eligible),
            lr=lr,
            steps=steps,
            norms=norms,
            lengths=[
                math.fsum(own) or float(count) for own, count in zip(shares, steps, strict=True)
            ],
            momentum=client.momentum,
            proximal=self.proximal,
            rounds=self.settings.rounds if self.algorithm.uses_rounds else None,
            server_lr=self.settings.server.lr,
            invited=cohort,
        )

    def weights(self, members: list[int], population: list[int]) -> list[float]:
        """Aggregation weights of some clients; those of the whole population sum to one."""
        if self.algorithm.weights == "uniform":
            return [1.0 / len(population)] * len(members)
        total = sum(self.sizes[k] for k in population)
        return [self.sizes[k] / total for k in members]

    def local_work(self, plan: RoundPlan) -> tuple[dict[str, Tensor], Tensor]:
        """Train the cohort, every rank its share, and sum what the clients send, in client order.

        The cohort is taken in blocks, so that memory does not grow with the number of clients; sums
        go on from one block to the next, so their bits do not depend on it. Clients with a memory
        stay with their rank; others are dealt out anew every round.
        """
        work = zip(plan.samples, plan.steps, strict=True)
        cost = [self.sampler.examples_seen(size, steps) for size, steps in work]
        fixed = self.state.clients_remember
        owners = [self.owners[k] for k in plan.cohort] if fixed else balance(cost, self.group.size)
        self.state.surveys = {
            name: survey(self.clients) for name, survey in chain(self.modifiers, "survey")
        }
        self.prepare_starts(plan.cohort)
        factors = {
            "update": self.algorithm.aggregate.coefficients(plan),
            "buffers": plan.weights,
            **{name: one.upload_weights(plan) for name, one in self.modifiers.items()},
        }
        sums = {
            name: torch.zeros(span.stop - span.start, dtype=self.state.w.dtype)
            for name, span in self.columns.items()
        }
        if self.settings.diagnostics.update_variance:
            sums["mean update"] = torch.zeros_like(sums["update"])
        collected: dict[str, list[Tensor]] = {name: [] for name in self.collectors}
        numbers = []
        block = max(self.group.size, min(MOST_ROWS, BLOCK_ELEMENTS // max(self.row_size, 1) - 1))
        for start in range(0, len(plan.cohort), block):
            members = range(start, min(start + block, len(plan.cohort)))
            block_owners = [owners[i] for i in members]
            exchange = Exchange(self.group, block_owners, self.row_size, self.state.w.dtype)
            mine = [i for i in members if owners[i] == self.group.rank]
            own_numbers = self._train_mine(plan, mine, exchange.mine)
            exchange.send()
            for name, span in self.columns.items():
                if name in collected:
                    collected[name].append(exchange.rows(span))
                elif span.start < span.stop:
                    exchange.add_to(sums[name], span, [factors[name][i] for i in members])
            if "mean update" in sums:
                # The same columns again: every rank must have read the first sums by now.
                self.group.barrier()
                weights = [plan.weights[i] for i in members]
                exchange.add_to(sums["mean update"], self.columns["update"], weights)
            numbers.append(gather(self.group, own_numbers, block_owners))
        sums |= {name: torch.cat(rows) for name, rows in collected.items()}
        return sums, torch.cat(numbers)

    def prepare_starts(self, clients: list[int]) -> None:
        """What these clients start from, where it is not the server's model, on every rank."""
        self.state.starts = {}
        for _, start in chain(self.modifiers, "start"):
            self.state.starts |= start(self.clients, self.done, clients)

    def _row_layout(self) -> dict[str, slice]:
        """What a client sends, side by side in one row: update, buffers, modifiers' uploads."""
        sizes = {
            "update": self.algorithm.shared.size,
            "buffers": 0 if self.algorithm.keeps_buffers else len(self.model.b),
            **{name: modifier.upload_size for name, modifier in self.modifiers.items()},
        }
        self.collectors = [name for name, one in self.modifiers.items() if one.collects]
        layout, self.row_size = {}, 0
        for name, size in sizes.items():
            layout[name] = slice(self.row_size, self.row_size + size)
            self.row_size += size
        return layout

    def _train_mine(self, plan: RoundPlan, mine: list[int], rows: Tensor) -> Tensor:
        """Train this rank's members of the cohort: fills the rows that they send.

        Returns their numbers for the record.
        """
        numbers = torch.empty(len(mine), self.client_numbers.width(plan), dtype=torch.float64)
        sends_buffers = self.model.has_buffers and not self.algorithm.keeps_buffers
        updates = rows[:, self.columns["update"]]
        for row, sent, values, position in zip(rows, updates, numbers, mine, strict=True):
            client = plan.cohort[position]
            before, memories = self.state.receive(client)
            place = sent if self.updates_in_rows else None
            trained = self.trainer(plan, position, self.shards[client], before, memories, place)
            if trained.local.update is not sent:
                sent.copy_(self.algorithm.shared.read(trained.local.update))
            if sends_buffers:
                row[self.columns["buffers"]] = self.model.b
            for name, result in trained.results.items():
                if result.upload is not None:
                    row[self.columns[name]] = result.upload
            self.client_numbers.write(values, trained)
            self.state.remember(client, trained.results)
        return numbers

    def server_step(self, plan: RoundPlan, sums: dict[str, Tensor], numbers: Tensor) -> None:
        """Apply what the cohort sent to the server's model and state."""
        state, algorithm = self.state, self.algorithm
        sums = {name: value.to(self.model.device) for name, value in sums.items()}
        weights = algorithm.shared.read(state.w)
        direction, state.server_opt = algorithm.server_opt.step(
            plan, weights, sums["update"], state.server_opt
        )
        algorithm.shared.add(state.w, direction, self.settings.server.lr)
        if not algorithm.keeps_buffers:
            state.b.copy_(sums["buffers"])
            if len(state.counters):  # integers are not averaged: the largest stands
                state.counters.copy_(self.client_numbers.counters(numbers).max(dim=0).values)
        for name, modifier in self.modifiers.items():
            state.server[name] = modifier.server(plan, state.server[name], sums[name])

    def record(self, plan: RoundPlan, numbers: Tensor) -> Record:
        """The round's row of the metrics, and a row a client."""
        work = zip(plan.samples, plan.steps, strict=True)
        examples = sum(self.sampler.examples_seen(size, steps) for size, steps in work)
        self.totals.count(plan, self.algorithm, examples, self.state.w.element_size())
        losses = self.client_numbers.losses(numbers)
        samples = torch.tensor(plan.samples, dtype=torch.float64)
        columns = {
            "train_loss": float(samples @ losses) / sum(plan.samples),
            "bytes_up": self.totals.bytes_up,
            "bytes_down": self.totals.bytes_down,
            "gradients": self.totals.gradients,
            **self.client_numbers.means(plan, numbers),
        }
        diverged = self.divergence.after_training(plan, numbers)
        rows = self.client_numbers.rows(plan, numbers, self.sizes)
        return Record(self.done, columns, clients=rows, diverged=diverged)

    def evaluate(self) -> Score:
        """All scores of the state after a round."""
        score = self._score_test_set()
        if self.validator is not None:
            score.validation = self._score(self.validator)
        if self.local_tests is not None:
            scores = self._score_local_tests(self.local_tests)
            score.others |= scores.columns()
            score.clients = scores.rows(self.done)
        return score

    def _score_local_tests(self, local_tests: list[Tensor]) -> LocalScores:
        """Clients that have test data: as received, and after the next round's training."""
        asked = self.eligible
        if self.settings.eval.population == "cohort":
            asked = self._draw_cohort(self.done)
        clients = [k for k in asked if len(local_tests[k])]
        plan = self.plan_for(self.done, clients, [self.planned[k] for k in clients])
        self.prepare_starts(clients)

        def score(client: int) -> list[float]:
            train, own_tests = self.trainer.train, local_tests[client]
            before, memories = self.state.receive(client)
            received = self.evaluator.score_part(train, own_tests)
            position = clients.index(client)
            self.trainer(plan, position, self.shards[client], before, memories)
            return [*received, *self.evaluator.score_part(train, own_tests)]

        tests = {k: len(local_tests[k]) for k in clients}
        return score_clients(self.group, tests, self.owners, score)

    def _score_test_set(self) -> Score:
        algorithm, score = self.algorithm, self._score(self.evaluator)
        if self._scores_own_models:
            return score
        for name, weights in algorithm.server_opt.also_score(self.state.server_opt).items():
            algorithm.shared.write(self.model.w, weights)
            other = self.evaluator.score()
            score.others |= {
                f"test_accuracy_{name}": other.accuracy,
                f"test_loss_{name}": other.loss,
            }
        return score

    @property
    def _scores_own_models(self) -> bool:
        return self.algorithm.personal and self.algorithm.scoring != "avg_bn"

    def _score(self, evaluator: Evaluator) -> Score:
        """Score the global model, or every client's own one where there is no global model."""
        if self._scores_own_models:
            self.prepare_starts(self.eligible)
            return evaluator.personal(
                self.state.receive, self.owners, self.class_counts, self.algorithm.scoring
            )
        self.load_global()
        return evaluator.score()

    def facts(self) -> dict[str, float]:
        """What modifiers measured before the first round, for the summary."""
        found: dict[str, float] = {}
        for name, modifier in self.modifiers.items():
            found |= modifier.facts(self.state.server[name])
        return found

    @cached_property
    def class_counts(self) -> list[Tensor]:
        """How many training examples of each class every client has; on the CPU."""
        labels = self.trainer.train.y.to("cpu")
        return [
            torch.bincount(labels[own.to("cpu")], minlength=self.classes) for own in self.shards
        ]

    def load_global(self) -> None:
        """Put the global model into the flat model."""
        self.prepare_starts(self.eligible)
        self.state.load_global(self.eligible, self.weights(self.eligible, self.eligible))
