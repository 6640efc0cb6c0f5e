"""The training loop: phases of optimizer steps, with records, evaluations and checkpoints between them."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from headrace.evaluation.evaluate import describe
from headrace.evaluation.room import Room, footprints, room_beside
from headrace.models.adapters import adapter_of
from headrace.optim import learning_rate
from headrace.params import Params, PhaseParams
from headrace.planning.beside import beside, describe_phase
from headrace.planning.device import Precision, choose_precision, microbatch_tokens
from headrace.planning.flops import training_flops
from headrace.planning.measured import Measured
from headrace.planning.plan import brief
from headrace.planning.probe import measured_gemm_flops
from headrace.progress import Meter, progress, say, say_table
from headrace.run_folder import RunFolder
from headrace.text.batches import Batch
from headrace.text.examples import Cursor
from headrace.text.tokens import write_atomically
from headrace.training.best import best_record, given_up
from headrace.training.checkpoint import TrainingState, keep_best, list_checkpoints, read_manifest, write_checkpoint
from headrace.training.input import TrainingInput
from headrace.training.optimizers import describe_optimizer
from headrace.training.records import Records, read_records, write_projector
from headrace.training.resume import Beginning, begin, decisive_params, resume
from headrace.training.setup import Trainable, build_trainable, initial_loss_scale
from headrace.training.source import Source
from headrace.training.step import NonFiniteError, StepResult, train_step

PROJECTOR_TOKENS = 10_000


class Stopped(Exception):
    """A signal asked the run to stop; a checkpoint of the finished step is written."""


def train(
    params: Params,
    run: RunFolder,
    source: Source,
    beginning: Beginning | None = None,
    *,
    checkpoint_first: bool = False,
) -> None:
    """Train from the newest checkpoint, or from the start, to the last step of the last phase.

    beginning: what a run without a checkpoint of its own starts from; None: new weights. checkpoint_first: such a run
    writes a checkpoint before its first step, too.
    Raises Stopped after SIGTERM or Ctrl-C (with a checkpoint), NonFiniteError before a bad update, UserError.
    """
    source.check()
    precision = choose_precision(params)
    is_new = not list_checkpoints(run)
    weights = beginning.folder if beginning is not None and is_new and not beginning.moments else None
    trainable = build_trainable(params, source.vocabulary, precision, run, initialize=is_new, weights=weights)
    state = resume(params, run, trainable.store)
    if state is None:
        state = TrainingState(loss_scale=initial_loss_scale(params, precision))
        state = begin(params, beginning, trainable.store, state) if beginning is not None else state
    peak = measured_gemm_flops(precision.device.type, precision.compute_dtype)
    say(
        f"Training {trainable.store.num_parameters:,} trainable parameters on {precision.device.type} in "
        f"{str(precision.compute_dtype).removeprefix('torch.')} ({peak / 1e9:,.0f} GFLOP/s measured matrix product), from "
        f"step {state.step} to {params.total_steps}"
    )
    say(f"Optimizer: {describe_optimizer(params)}")
    if trainable.plan is not None:
        write_atomically(run.plan, json.dumps(trainable.plan.record(), indent=1).encode())
        for line in brief(trainable.plan):
            say(line)
    measured = Measured(trainable.store, trainable.streaming)
    loop = _Loop(params, run, source, precision, trainable, state, Records(run, state.step), measured)
    try:
        if checkpoint_first and is_new:
            loop.checkpoint()
        with stop_on_signals() as stop_asked:
            loop.run(stop_asked)
    finally:
        loop.records.close()
        trainable.close()
        if trainable.plan is not None:
            record = {**trainable.plan.record(), "measured": loop.measured.record()}
            write_atomically(run.plan, json.dumps(record, indent=1).encode())
            for phase in beside(record):
                for part in describe_phase(phase, assumed_rates=not trainable.plan.machine.measured):
                    if isinstance(part, str):
                        say(part)
                    else:
                        say_table(*part)


def training_done(params: Params, run: RunFolder, source: Source | None = None) -> bool:
    """Whether the newest checkpoint stands at the last step, or where evaluations got no better, and was evaluated."""
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        return False
    step = read_manifest(checkpoints[-1])["state"]["step"]
    records = read_records(run.evaluations)
    if source is not None and given_up(records, source.metric, params.evaluation.patience):
        return True
    evaluated = any(record["step"] == step for record in records)
    held_out = params.text.held_out if params.data is None else params.data.evaluation or params.data.held_out
    return step == params.total_steps and (evaluated or not held_out)


@dataclass
class _Loop:
    """What the loop carries from step to step."""

    params: Params
    run_folder: RunFolder
    source: Source
    precision: Precision
    trainable: Trainable
    state: TrainingState
    records: Records
    measured: Measured
    _written_step: int = -1

    def run(self, stop_asked: Callable[[], bool]) -> None:
        phases = self.params.training.phases
        with progress("Training", self.params.total_steps, "steps", done=self.state.step) as meter:
            while True:
                self._run_phase(stop_asked, meter)
                if not self._evaluated():
                    self.evaluate()
                if self._given_up():
                    best = best_record(read_records(self.run_folder.evaluations), self.source.metric or "")
                    say(
                        f"Stopped at step {self.state.step}: no evaluation since step {best and best['step']} was better"
                    )
                    return
                if self.state.phase + 1 == len(phases):
                    return
                self.state = replace(self.state, phase=self.state.phase + 1, phase_step=0, cursor=Cursor())

    def _run_phase(self, stop_asked: Callable[[], bool], meter: Meter) -> None:
        training, phase = self.params.training, self.params.training.phases[self.state.phase]
        batches = self._batches(phase)
        if self._evaluation_due() and not self._evaluated():
            self.evaluate()  # the run was asked to stop between a step and its evaluation
        self.trainable.model.train()
        since = _Interval()
        for batch, cursor in batches:
            lr = self._learning_rate(phase)
            with self.measured.step(f"phase {self.state.phase}"):
                result = self._step(batch, cursor, lr)
            kind, config = self.params.task.kind, self.trainable.config
            since.add(batch, training_flops(kind, config, self._block_weights, batch, *self._frozen_weights))
            step, done = self.state.step, self.state.phase_step == phase.steps
            if step % training.log_every == 0 or done:
                self._record(batch, result, lr, since, batches.waited_s)
                since, batches.waited_s = _Interval(), 0.0
            meter.advance(note=f"loss {result.loss:.3f}")
            if stop_asked():
                self.checkpoint()
                raise Stopped(f"Stopped at step {step}; the same command goes on from there")
            if not done and self._evaluation_due():
                self.evaluate()
                since, batches.waited_s = _Interval(), 0.0
                if done := self._given_up():
                    self.checkpoint()
                    return
            if done or step % training.checkpoint_every == 0:
                self.checkpoint()

    def _batches(self, phase: PhaseParams) -> TrainingInput:
        """The rest of the phase's batches, from the cursor on."""
        state, config, plan = self.state, self.trainable.config, self.trainable.plan
        if state.phase_step == 0:
            self._account()
        tokens_at_once = plan.microbatch_tokens if plan else microbatch_tokens(self.params, config, self.precision)
        remaining = phase.steps - state.phase_step
        return TrainingInput(
            self.source.batches(state.phase, state.cursor, remaining, config, tokens_at_once),
            self.params.training.input_workers,
        )

    def _learning_rate(self, phase: PhaseParams) -> float:
        """The phase's own schedule on its steps, or else the run's on all steps."""
        training, state = self.params.training, self.state
        if phase.learning_rate is not None:
            return learning_rate(phase.learning_rate, state.phase_step, training.schedule_clock)
        assert training.learning_rate is not None
        return learning_rate(training.learning_rate, state.step, training.schedule_clock)

    def _step(self, batch: Batch, cursor: Cursor, lr: float) -> StepResult:
        """One optimizer step; the state moves on."""
        state = self.state
        try:
            result = train_step(
                batch,
                self.trainable.task,
                self.trainable.model,
                self.trainable.store,
                self.trainable.streaming,
                self.precision,
                step=state.step,
                updates=state.updates,
                lr=lr,
                max_norm=self.params.training.optimizer.max_gradient_norm,
                loss_scale=state.loss_scale,
            )
        except NonFiniteError:
            bad = {"step": state.step + 1, "phase": state.phase, "loss": None, "batch": f"{batch.digest:08x}"}
            self.records.train(bad)
            raise
        self.state = replace(
            state,
            step=state.step + 1,
            updates=state.updates + result.updated,
            phase_step=state.phase_step + 1,
            cursor=cursor,
            loss_scale=state.loss_scale.after_step(result.updated),
        )
        return result

    def _account(self) -> None:
        """Say and write down what the phase makes of the data."""
        line, figures = self.source.account(self.state.phase)
        say(line)
        known = json.loads(self.run_folder.phases.read_text("utf-8")) if self.run_folder.phases.is_file() else []
        known = [*known[: self.state.phase], {"phase": self.state.phase, **figures}]
        write_atomically(self.run_folder.phases, json.dumps(known, indent=1).encode())

    def _record(self, batch: Batch, result: StepResult, lr: float, since: "_Interval", waited_s: float) -> None:
        elapsed_s = time.perf_counter() - since.started_s
        peak = measured_gemm_flops(self.precision.device.type, self.precision.compute_dtype)
        self.records.train(
            {
                "step": self.state.step,
                "phase": self.state.phase,
                "loss": result.loss,
                **result.losses,
                "learning_rate": lr,
                "gradient_norm": result.gradient_norm,
                "loss_scale": self.state.loss_scale.scale if self.state.loss_scale.dynamic else None,
                "updated": result.updated,
                "batch": f"{batch.digest:08x}",
                "examples": batch.num_examples,
                "microbatches": len(batch.microbatches),
                "tokens_per_s": since.tokens / elapsed_s,
                "slots_per_s": since.slots / elapsed_s,
                "gemm_fraction": since.flops / elapsed_s / peak,
                "input_wait_fraction": waited_s / elapsed_s,
                "interval_s": elapsed_s,
            }
        )

    def _evaluation_due(self) -> bool:
        """Whether this step of a phase evaluates; the last one always does, in `run`."""
        every = self.params.evaluation.every
        return every is not None and self.state.phase_step > 0 and self.state.step % every == 0

    def _evaluated(self) -> bool:
        return any(record["step"] == self.state.step for record in read_records(self.run_folder.evaluations))

    def evaluate(self) -> None:
        """Evaluate the weights as they are and record it."""
        state = self.state
        length = self.params.evaluation.sequence_length or self.params.training.phases[state.phase].sequence_length
        record = self.source.evaluate(
            self.trainable.model,
            self.precision,
            step=state.step,
            sequence_length=length,
            streaming=self.trainable.streaming,
            room=self._evaluation_room(length),
        )
        self.trainable.model.train()
        if record:
            self.records.evaluation({"step": state.step, "phase": state.phase, **record})
            say(f"step {state.step}: {describe(record)}")
            self._keep_best()

    def _keep_best(self) -> None:
        """Write a checkpoint that stays, when this evaluation is the best so far."""
        if (metric := self.source.metric) is None:
            return
        best = best_record(read_records(self.run_folder.evaluations), metric)
        if best is not None and best["step"] == self.state.step:
            keep_best(self.run_folder, self.checkpoint())

    def _given_up(self) -> bool:
        records = read_records(self.run_folder.evaluations)
        return given_up(records, self.source.metric, self.params.evaluation.patience)

    def _evaluation_room(self, length: int) -> Room | None:
        """How much of an evaluation goes through the model at once beside what training holds."""
        plan, config = self.trainable.plan, self.trainable.config
        if plan is None or not plan.streams:
            return Room(plan.microbatch_tokens, 1) if plan else None
        adapter = adapter_of(self.trainable.model)
        footprint_of = footprints(self.params, config, self.precision, length, adapter and adapter[1])
        return room_beside(plan, footprint_of, length)

    def checkpoint(self) -> Path:
        """Written once a step, whoever asks."""
        written = self.run_folder.checkpoints / f"step-{self.state.step:08d}"
        if self._written_step == self.state.step and written.is_dir():
            return written
        self.trainable.streaming.fetcher.rest()
        write_checkpoint(
            self.run_folder,
            self.trainable.store,
            self.trainable.config,
            self.state,
            decisive_params(self.params),
            self.params.training.keep,
            self.trainable.model,
        )
        ids, texts = self.source.shown_tokens(PROJECTOR_TOKENS)
        write_projector(self.run_folder, self._output_embeddings()[list(ids)].cpu().numpy(), texts)
        self._written_step = self.state.step
        return written

    def _output_embeddings(self) -> torch.Tensor:
        """The head's weights (V, H), or the input's where the head predicts no tokens, wherever they are."""
        weight, store = self.trainable.vocabulary_weight, self.trainable.store
        for i, segment in enumerate(store.segments):
            for name, parameter in segment.parameters.items():
                if parameter is weight and store.placements[i] != "device":
                    return store.weights(i)[name]
        return weight.detach()

    @cached_property
    def _block_weights(self) -> int:
        """Weights of matrices inside blocks: what each token is multiplied with."""
        return sum(parameter.numel() for parameter in self._block_matrices)

    @cached_property
    def _frozen_weights(self) -> tuple[int, int]:
        """Those of them that do not train, and those of an output layer over the vocabulary."""
        head = self.trainable.vocabulary_weight
        predicts_tokens = self.params.task.kind in ("masked_lm", "causal_lm")
        in_blocks = sum(parameter.numel() for parameter in self._block_matrices if not parameter.requires_grad)
        return in_blocks, head.numel() if predicts_tokens and not head.requires_grad else 0

    @property
    def _block_matrices(self) -> Iterator[torch.nn.Parameter]:
        parameters = (p for s in self.trainable.store.segments if "block-" in s.name for p in s.parameters.values())
        return (parameter for parameter in parameters if parameter.ndim >= 2)


class _Interval:
    """Work since the last record."""

    def __init__(self) -> None:
        self.started_s = time.perf_counter()
        self.tokens = self.slots = 0
        self.flops = 0.0

    def add(self, batch: Batch, flops: float) -> None:
        self.tokens += batch.num_tokens
        self.slots += batch.num_slots
        self.flops += flops


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Within it, SIGTERM and Ctrl-C only set a flag that the loop reads; a second Ctrl-C interrupts at once."""
    asked = threading.Event()

    def ask(number: int, _: object) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()
        say(f"{signal.Signals(number).name}: finishing this step, then writing a checkpoint")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
