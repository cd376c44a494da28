"""Training loop of a run: blocks of steps with a validation after each, checkpoints, exact resumption."""

import math
import time
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from mirrorshot.data.benchmarks import Dataset
from mirrorshot.data.decoding import Progress
from mirrorshot.files.checkpoint import save_checkpoint
from mirrorshot.files.lazy import need
from mirrorshot.methods.calibrated import TaskTemperature
from mirrorshot.training import build
from mirrorshot.training.config import Config
from mirrorshot.training.folder import RunFolder
from mirrorshot.training.learner import BlockStats, Learner, NotFiniteError
from mirrorshot.training.shifted import fit_rule
from mirrorshot.training.stream import Block, NumberedTasks
from mirrorshot.training.validation import Score, Validator
from mirrorshot.training.world import World
from mirrorshot.types import InvalidInputError, NumericalError

_WORTH_COMPILING = 64  # side in pixels: for smaller images, compiling takes more time than it saves in validations
_TELL_EVERY = 1.0  # seconds between reports of progress within a block
_FINAL_TUNING = 4  # number of tuning tasks after training, relative to that before a validation


class TrainResult(NamedTuple):
    """Result of a finished run. Times are those of this session, without loading of the data."""

    best: dict[str, Any]  # log record of the best validation
    n_episodes: int  # including earlier sessions
    seconds: float
    episodes_per_second: float  # including validations


class Trainer:
    """A run in progress, created by `train`."""

    def __init__(
        self, config: Config, dataset: Dataset, world: World, run: RunFolder | None, progress: Progress | None
    ) -> None:
        if dataset.train is None or dataset.val is None:
            raise InvalidInputError("Expected a data set with classes for training and validation.")
        config = build.resolve_options(config, dataset)
        self.config, self.world, self.folder = config, world, run
        self.progress = progress or (lambda done, total, label: None)
        method = build.place_method(build.build_method(config, dataset), config, world.device)
        source = dataset.train.to(world.device)
        sampler = build.training_sampler(config, source)
        self.stream = build.build_stream(config, dataset, sampler, rank=world.rank, world_size=world.size)
        # augmented as in training: a temperature tuned on memorised images is overconfident
        numbered = partial(
            NumberedTasks, preprocess=self.stream.preprocess, augment=True, turn_classes=config.turn_classes
        )
        tuning, self._final_tuning = numbered(sampler), numbered(build.tuning_sampler(config, source))
        validation = build.validation_sampler(config, dataset.val.to(world.device))
        tested = NumberedTasks(validation, build.build_preprocess(dataset))
        self._data = [part.fingerprint for part in (dataset.train, dataset.val)]
        self._calibration = tested, build.build_preprocess(dataset)
        self.validator = Validator(method, tuning, tested, world)
        if world.device.type == "cuda" and config.accelerate:
            method.accelerate()
            self.stream.compile()
            if dataset.image_size >= _WORTH_COMPILING:
                self.validator.method.accelerate()  # compiled for one batch size
        self.learner = Learner(method.train(), config, self.stream, world_size=world.size)
        self.step = 0
        self.best: dict[str, Any] = {}
        self.best_weights: dict[str, Tensor] = {}
        self.rule: TaskTemperature | None = None
        self._label, self._told = "first validation ahead", time.perf_counter()
        self.tracker = None
        if config.tensorboard and run is not None:
            self.tracker = need("torch.utils.tensorboard").SummaryWriter(str(run.path))

    def run(self) -> TrainResult:
        """Train to the end."""
        self._restore()
        first_step, started, saved = self.step, time.perf_counter(), time.perf_counter()
        block = self._next_block()
        is_finished = block is None  # an earlier session has tuned and saved it
        while block is not None:
            before = self.learner.snapshot()
            stats, following = self._take(block, before)
            if self.validator.method.is_tuned:
                self._check(stats, block, before)  # tuning needs finite weights
            # enqueued right after the block, so a GPU does not idle between training and validation
            sums = self._weigh()
            self._check(stats, block, before)
            self.step += len(block.rows)
            score = self.validator.read(sums)
            self._record(stats, score, time.perf_counter() - started, self.step - first_step)
            if time.perf_counter() - saved >= self.config.save_every and following is not None:
                self._save()
                saved = time.perf_counter()
            block = following
        if not is_finished:
            self._finish()
        seconds = time.perf_counter() - started
        done = (self.step - first_step) * self.config.tasks_per_step
        return TrainResult(self.best, self.step * self.config.tasks_per_step, seconds, done / seconds)

    def _next_block(self, ahead: int = 0) -> Block | None:
        """Return the steps until the next validation; None at the end."""
        first = self.step + ahead
        n_steps = min(self.config.steps_per_validation, self.config.n_steps - first)
        return self.stream.block(first, n_steps) if n_steps > 0 else None

    def _take(self, block: Block, before: dict[str, Tensor]) -> tuple[BlockStats, Block | None]:
        """Run a block; the host draws the next one while a GPU computes."""
        try:
            stats = self.learner.run(block, self.step, self._tick_if_due)
        except NotFiniteError as error:
            self._fail(block, before, error.step, str(error))
        return stats, self._next_block(len(block.rows))

    def _check(self, stats: BlockStats, block: Block, before: dict[str, Tensor]) -> None:
        """Raise if a step of the block was not finite: restore the state before the block and find the step."""
        bad = int(stats.first_bad)
        if bad >= 0:
            self.learner.restore(before)
            found = self.learner.find_failure(block, self.step)
            repeated = " (finite when repeated step by step)" if found < 0 else ""
            self._fail(block, before, bad if found < 0 else found, f"a value that is not finite{repeated}")

    def _fail(self, block: Block, before: dict[str, Tensor], place: int, detail: str) -> NoReturn:
        """Save the state before a step of the block, and raise an error that names the step."""
        step, T = self.step + place, self.config.tasks_per_step
        self.learner.restore(before)  # the failed step has changed statistics of the normalisation
        if place > 0:
            self.learner.run(Block(block.rows[:place], block.draws[:place]), self.step)
        if self.folder is not None:
            save_checkpoint(self.folder.path / "failed.safetensors", self.learner.tensors(), {"step": step})
        tasks = f"task {step * T}" if T == 1 else f"tasks {step * T} to {(step + 1) * T - 1}"
        raise NumericalError(
            f"Expected a finite loss and gradient, but step {step} ({tasks}) has {detail}. The state before "
            "that step is in failed.safetensors. Try a lower lr or kernel_lr, a smaller method_options.step_size, or "
            "precision=float32."
        )

    @torch.no_grad()
    def _weigh(self) -> Tensor:
        """Tune the current weights, and predict the validation tasks with them."""
        self.world.mean_(b for b in self.learner.method.buffers() if b.is_floating_point())
        self.validator.tune(self.learner.weights(), self.config.n_tune_tasks)
        for name, buffer in self.learner.method.named_buffers():
            buffer.copy_(self.validator.method.get_buffer(name))
        return self.validator.weigh(self.config.n_validation_tasks)

    def _record(self, stats: BlockStats, score: Score, seconds: float, steps: int) -> None:
        n_episodes = self.step * self.config.tasks_per_step
        record: dict[str, Any] = {
            "step": self.step,
            "episodes": n_episodes,
            "seconds": round(seconds, 3),
            "loss": float(stats.loss),
            "gradient": float(stats.norm),
            "val_accuracy": score.accuracy,
            "val_nll": score.nll,
            **self.validator.describe(),
        }
        record = {name: value if math.isfinite(value) else None for name, value in record.items()}
        if not self.best or _rank(record) > _rank(self.best):
            self.best = record
            self.best_weights = self.validator.weights()
        self._report(record, steps * self.config.tasks_per_step / seconds)

    def _report(self, record: dict[str, Any], speed: float) -> None:
        if self.folder is not None:
            self.folder.log(record)
        if self.tracker is not None:
            for name in sorted(name for name in set(record) - {"step"} if record[name] is not None):
                self.tracker.add_scalar(name, record[name], record["step"])
            self.tracker.flush()
        self._label = (
            f"loss {record['loss']:.3f}  val {record['val_accuracy']:.1%} (best {self.best['val_accuracy']:.1%})  "
            f"{speed:,.0f} episodes/s"
        )
        self._tick(0)

    def _tick(self, n_steps: int) -> None:
        T = self.config.tasks_per_step
        self._told = time.perf_counter()
        self.progress((self.step + n_steps) * T, self.config.n_steps * T, self._label)

    def _tick_if_due(self, n_steps: int) -> None:
        if time.perf_counter() - self._told > _TELL_EVERY:
            self._tick(n_steps)

    def _save(self) -> None:
        """Write the best weights, then the whole state including them, so one file is enough to resume a run."""
        if self.folder is None:
            return
        info = {"method": self.config.method, "config": self.config.to_dict()}
        best = {f"method.{name}": tensor for name, tensor in self.best_weights.items()}
        rule = {} if self.rule is None else {"temperature_rule": self.rule._asdict()}
        self.folder.save("best", best, {**info, **self.best, **rule})
        state = self.learner.tensors() | {f"best.{name}": tensor for name, tensor in self.best_weights.items()}
        self.folder.save("last", state, {**info, "step": self.step, "best": self.best, "data": self._data})

    def _restore(self) -> None:
        """Resume from the last checkpoint, if there is one, with the same state in all processes."""
        tensors, weights = self.learner.tensors(), self.validator.weights()
        if self.folder is not None and self.folder.has("last"):
            last = self.folder.load("last")
            _check_same({**tensors, **{f"best.{name}": t for name, t in weights.items()}}, last.tensors)
            if last.info.get("data", self._data) != self._data:
                raise InvalidInputError(
                    f"Expected the training and validation items that the run in {self.folder.path} began with, but "
                    "others are there now. Put them back, or begin another run."
                )
            self.learner.restore(last.tensors)
            for name, tensor in weights.items():
                tensor.copy_(last.tensors[f"best.{name}"])
            self.step, self.best = last.info["step"], last.info["best"]
        self.step, self.best = self.world.share_value((self.step, self.best))
        self.world.share_([*tensors.values(), *weights.values()])
        self.best_weights = weights if self.best else {}

    def _finish(self) -> None:
        """Tune the best weights again on more tasks, fit their temperature rule, and save everything."""
        if self.best_weights:
            n_tasks = _FINAL_TUNING * self.config.n_tune_tasks
            self.validator.tune(self.best_weights, n_tasks, self._final_tuning)
            self.best_weights = self.validator.weights()
            if self.config.n_calibration_tasks:
                method, n_tasks = self.validator.method, self.config.n_calibration_tasks
                self.rule = fit_rule(method, *self._calibration, n_tasks) if self.world.is_first else None
        self._save()


def _rank(record: dict[str, Any]) -> tuple[float, float]:
    """Return a sort key, larger for better validations; an NLL that is not finite ranks last."""
    return record["val_accuracy"], -math.inf if record["val_nll"] is None else -record["val_nll"]


def _check_same(own: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    wrong = sorted(set(own) ^ set(saved)) or [n for n in own if own[n].shape != saved[n].shape]
    if wrong:
        raise InvalidInputError(
            f"Expected the last checkpoint to fit the settings of the run, but {len(wrong)} tensors differ: {wrong[0]}."
        )
