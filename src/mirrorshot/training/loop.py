"""Meta-training: blocks of steps, a validation after each, checkpoints, and an exact way back after a kill."""

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from mirrorshot.checkpoint import RunFolder, read_config, save_checkpoint
from mirrorshot.config import Config, from_dict
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.methods import FewShotMethod, PretrainedMethod
from mirrorshot.training.build import (
    build_method,
    build_preprocess,
    is_augmented,
    resolve_options,
    training_sampler,
    validation_sampler,
)
from mirrorshot.training.learner import BlockStats, Learner, NotFiniteError
from mirrorshot.training.stream import Block, ItemStream, PlainTasks, Stream, TaskStream
from mirrorshot.training.world import World, join_world
from mirrorshot.types import InvalidInputError, NumericalError, TaskBatch

Progress = Callable[[int, int, str], None]
_TASKS_AT_ONCE = {"cpu": 10, "cuda": 50}
_WORTH_COMPILING = 64  # pixels of a side: below, validation is too quick to win back the time of compiling
_FINAL_TUNING = 4  # times as many tasks as before a validation
_FREE = ("device", "save_every", "tensorboard")  # settings that may change when a run goes on


class TrainResult(NamedTuple):
    """What a finished run has reached.

    Attributes:
        best: record of the best validation.
        n_episodes: tasks trained on in all, earlier sessions included.
        seconds: wall time of this session's training, loading of data and recording of graphs left out.
        episodes_per_second: speed of this session, validations included.
    """

    best: dict[str, Any]
    n_episodes: int
    seconds: float
    episodes_per_second: float


def train(
    config: Config | None, folder: Path, *, resume: bool = False, progress: Progress | None = None,
    dataset: Dataset | None = None,
) -> TrainResult:  # fmt: skip
    """Meta-train a method and keep the weights that are best on validation tasks.

    Args:
        config: settings. With `resume` None, which takes those of the run, or the same ones; only `device`,
            `save_every` and `tensorboard` may differ.
        folder: folder of the run.
        resume: go on with the run in that folder, exactly as if it had not stopped.
        progress: called with episodes done, episodes in all, and a line of text.
        dataset: the data; None: loads what `config.data` names.

    Raises:
        NumericalError: a loss or gradient was not finite. The state before that step is kept in `failed.safetensors`.
    """
    if resume or config is None:
        config = _same_settings(config, from_dict(read_config(folder)), folder)
    with join_world(config.device) as world:
        if config.tasks_per_step % world.size:
            raise InvalidInputError(
                f"Expected `tasks_per_step` to be a multiple of the {world.size} processes, but got "
                f"{config.tasks_per_step}."
            )
        with _open_folder(config, folder, resume, world) as run, _fastest_convolutions(world.device):
            dataset = dataset or load_dataset(config.data, splits=("train", "val"), progress=progress)
            return Trainer(config, dataset, world, run, progress).run()


class Trainer:
    """A run in progress. Made by `train`."""

    def __init__(
        self, config: Config, dataset: Dataset, world: World, run: RunFolder | None, progress: Progress | None
    ) -> None:
        if dataset.train is None or dataset.val is None:
            raise InvalidInputError("Expected a data set with classes for training and validation.")
        config = resolve_options(config, dataset)
        self.config, self.world, self.folder = config, world, run
        self.progress = progress or (lambda done, total, label: None)
        method = build_method(config, dataset).to(world.device)
        if world.device.type == "cuda":
            method.network_dtype = None if config.precision == "float32" else torch.bfloat16
            if dataset.image_size:
                method.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif config.precision == "bfloat16":
            method.network_dtype = torch.bfloat16
        self.evaluated = copy.deepcopy(method).eval().requires_grad_(False)
        self.final = copy.deepcopy(self.evaluated)
        is_accelerated = world.device.type == "cuda" and config.accelerate
        if is_accelerated:
            method.accelerate()
            if dataset.image_size >= _WORTH_COMPILING:
                self.evaluated.accelerate()
        sampler, preprocess = training_sampler(config, dataset.train.to(world.device)), build_preprocess(dataset)
        augmented = preprocess and preprocess._replace(augment=is_augmented(config, dataset))
        is_pretrained = isinstance(method, PretrainedMethod)
        self.stream: Stream = (ItemStream if is_pretrained else TaskStream)(
            sampler,
            augmented,
            config.batch_size if is_pretrained else config.tasks_per_step,
            seed=config.seed,
            rank=world.rank,
            world_size=world.size,
        )
        if is_accelerated:
            self.stream.compile()
        self.tuning = PlainTasks(sampler, preprocess)
        self.validation = PlainTasks(validation_sampler(config, dataset.val.to(world.device)), preprocess)
        self.learner = Learner(method.train(), config, self.stream, world_size=world.size)
        self.step = 0
        self.best: dict[str, Any] = {}
        self.best_weights: dict[str, Tensor] = {}
        self.tracker = _tensorboard(run) if config.tensorboard and run is not None else None

    def run(self) -> TrainResult:
        """Train to the end."""
        self._restore()
        first_step, started, saved = self.step, time.perf_counter(), time.perf_counter()
        block = self._next_block()
        is_finished = block is None  # and was tuned and saved by an earlier session
        while block is not None:
            before = self.learner.snapshot()
            stats, following = self._take(block, before)
            self._check(stats, block, before)
            self.step += len(block.rows)
            self._validate(stats, time.perf_counter() - started, self.step - first_step)
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
        """The tasks until the next validation; None at the end."""
        first = self.step + ahead
        n_steps = min(self.config.steps_per_validation, self.config.n_steps - first)
        return self.stream.block(first, n_steps) if n_steps > 0 else None

    def _take(self, block: Block, before: dict[str, Tensor]) -> tuple[BlockStats, Block | None]:
        """Run a block; while a GPU is busy with it, the host draws the next one."""
        try:
            stats = self.learner.run(block, self.step)
        except NotFiniteError as error:
            self._fail(block, before, error.step, str(error))
        return stats, self._next_block(len(block.rows))

    def _check(self, stats: BlockStats, block: Block, before: dict[str, Tensor]) -> None:
        """Stop if a step of the block was not finite: go back to its start and find the step."""
        bad = int(stats.first_bad)
        if bad >= 0:
            self.learner.restore(before)
            found = self.learner.find_failure(block, self.step)
            detail = "not repeated step by step" if found < 0 else ""
            self._fail(block, before, bad if found < 0 else found, detail)

    def _fail(self, block: Block, before: dict[str, Tensor], place: int, detail: str) -> NoReturn:
        """Save the state before a step of the block, and say so."""
        step, T = self.step + place, self.config.tasks_per_step
        self.learner.restore(before)  # the step has moved the statistics of its normalisation
        if place > 0:
            self.learner.run(Block(block.rows[:place], block.draws[:place]), self.step)
        if self.folder is not None:
            save_checkpoint(self.folder.path / "failed.safetensors", self.learner.tensors(), {"step": step})
        tasks = f"task {step * T}" if T == 1 else f"tasks {step * T} to {(step + 1) * T - 1}"
        raise NumericalError(
            f"Expected a finite loss and gradient, but step {step} ({tasks}) has {detail or 'none'}. The state before "
            "that step is in failed.safetensors. Try a lower lr or kernel_lr, a smaller method_options.step_size, or "
            "precision=float32."
        )

    def _validate(self, stats: BlockStats, seconds: float, steps: int) -> None:
        """Tune and validate the weights of this moment, log them, and keep them if they are the best."""
        self.world.mean_(b for b in self.learner.method.buffers() if b.is_floating_point())
        self._tune(self.learner.weights(), self.config.n_tune_tasks)
        _copy_buffers(self.evaluated, self.learner.method)
        score = self._score()
        n_episodes = self.step * self.config.tasks_per_step
        record: dict[str, Any] = {
            "step": self.step, "episodes": n_episodes, "seconds": round(seconds, 3), "loss": float(stats.loss),
            "gradient": float(stats.norm), "val_accuracy": score[0], "val_nll": score[1], **describe(self.evaluated),
        }  # fmt: skip
        record = {name: value if math.isfinite(value) else None for name, value in record.items()}
        if not self.best or _rank(record) > _rank(self.best):
            self.best = record
            self.best_weights = _copied(self.evaluated)
        self._report(record, steps * self.config.tasks_per_step / seconds)

    def _report(self, record: dict[str, Any], speed: float) -> None:
        if self.folder is not None:
            self.folder.log(record)
        if self.tracker is not None:
            for name in sorted(name for name in set(record) - {"step"} if record[name] is not None):
                self.tracker.add_scalar(name, record[name], record["step"])
            self.tracker.flush()
        label = (
            f"loss {record['loss']:.3f}  val {record['val_accuracy']:.1%} (best {self.best['val_accuracy']:.1%})  "
            f"{speed:,.0f} episodes/s"
        )
        self.progress(record["episodes"], self.config.n_steps * self.config.tasks_per_step, label)

    @torch.no_grad()
    def _tune(self, weights: dict[str, Tensor], n_tasks: int) -> None:
        """Load weights into the method that is evaluated, and let it fit what it fits on training tasks."""
        self.evaluated.load_state_dict(weights)
        if self.evaluated.is_tuned and self.world.is_first:
            # numbers far beyond those of training: other tasks of the same classes
            self.evaluated.seed(0)
            self.evaluated.tune(*self.tuning.tasks(range(2**40, 2**40 + n_tasks)))
        self.world.share_(self.evaluated.buffers())

    @torch.no_grad()
    def _score(self) -> tuple[float, float]:
        """Mean accuracy and NLL of the validation tasks."""
        mine = self.world.part_of(self.config.n_validation_tasks)
        sums = torch.zeros(3, dtype=torch.float64, device=self.world.device)
        self.evaluated.seed(self.world.rank)
        for tasks, query_y in _batches(self.validation, mine):
            log_prob = self.evaluated.predict(tasks)
            right = (log_prob.argmax(-1) == query_y).double()
            lost = -log_prob.gather(-1, query_y[..., None])[..., 0].double()
            weight = tasks.query_weight.double()
            sums += torch.stack([(weight * right).sum(), (weight * lost).sum(), weight.sum()])
        total = self.world.sum_(sums).tolist()
        return total[0] / total[2], total[1] / total[2]

    def _save(self) -> None:
        """Write the best weights, then the whole state, which has them too: one file that a run goes on from."""
        if self.folder is None:
            return
        info = {"method": self.config.method, "config": self.config.to_dict()}
        best = {f"method.{name}": tensor for name, tensor in self.best_weights.items()}
        self.folder.save("best", best, {**info, **self.best})
        state = self.learner.tensors() | {f"best.{name}": tensor for name, tensor in self.best_weights.items()}
        self.folder.save("last", state, {**info, "step": self.step, "best": self.best})

    def _restore(self) -> None:
        """Continue from the last checkpoint, if there is one; all processes from the same state."""
        tensors, weights = self.learner.tensors(), _copied(self.evaluated)
        if self.folder is not None and self.folder.has("last"):
            last = self.folder.load("last")
            _check_same({**tensors, **{f"best.{name}": t for name, t in weights.items()}}, last.tensors)
            self.learner.restore(last.tensors)
            for name, tensor in weights.items():
                tensor.copy_(last.tensors[f"best.{name}"])
            self.step, self.best = last.info["step"], last.info["best"]
        self.step, self.best = self.world.share_value((self.step, self.best))
        self.world.share_([*tensors.values(), *weights.values()])
        self.best_weights = weights if self.best else {}

    def _finish(self) -> None:
        """Tune the best weights once more, on more tasks, and write everything."""
        if self.best_weights:
            self.evaluated = self.final  # not compiled for one number of tasks
            self._tune(self.best_weights, _FINAL_TUNING * self.config.n_tune_tasks)
            self.best_weights = _copied(self.evaluated)
        self._save()


def describe(method: FewShotMethod) -> dict[str, float]:
    """Scalars of a method worth logging: parameters of its kernel (exponentials of logarithms), its temperature."""
    scalars = [*method.named_parameters(), *method.named_buffers()]
    return {
        name.rpartition(".")[2].removeprefix("log_"): float(t.exp())
        for name, t in scalars
        if name.rpartition(".")[2].startswith("log_") and t.numel() == 1
    }


def _batches(stream: PlainTasks, numbers: range) -> Iterator[tuple[TaskBatch, Tensor]]:
    size = _TASKS_AT_ONCE[stream.device.type]
    for start in range(0, len(numbers), size):
        yield stream.tasks(numbers[start : start + size])


def _copied(method: FewShotMethod) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def _rank(record: dict[str, Any]) -> tuple[float, float]:
    """The larger, the better; no likelihood (none that is finite) is the worst one."""
    return record["val_accuracy"], -math.inf if record["val_nll"] is None else -record["val_nll"]


@torch.no_grad()
def _copy_buffers(source: FewShotMethod, target: FewShotMethod) -> None:
    for name, buffer in target.named_buffers():
        buffer.copy_(source.get_buffer(name))


def _same_settings(given: Config | None, own: Config, folder: Path) -> Config:
    """The settings with which a run goes on: its own, but for those that may change."""
    if given is None:
        return own
    ours, theirs = given.to_dict(), own.to_dict()
    different = [
        f"{n} ({ours[n]!r}, not {theirs[n]!r})" for n in sorted(ours) if n not in _FREE and ours[n] != theirs[n]
    ]
    if different:
        raise InvalidInputError(
            f"Expected the settings of the run in {folder} to go on with it, but these differ: {', '.join(different)}. "
            "Leave them out, or begin another run."
        )
    return given


def _check_same(own: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    wrong = sorted(set(own) ^ set(saved)) or [n for n in own if own[n].shape != saved[n].shape]
    if wrong:
        raise InvalidInputError(
            f"Expected the last checkpoint to fit the settings of the run, but {len(wrong)} tensors differ: {wrong[0]}."
        )


@contextlib.contextmanager
def _open_folder(config: Config, folder: Path, resume: bool, world: World) -> Iterator[RunFolder | None]:
    """The folder of the run, for the first process; the others write nothing."""
    if not world.is_first:
        yield None
        return
    with RunFolder.resume(folder) if resume else RunFolder.create(folder, config.to_dict()) as run:
        yield run


@contextlib.contextmanager
def _fastest_convolutions(device: torch.device) -> Iterator[None]:
    """Let cuDNN try its algorithms on the first step and keep the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _tensorboard(run: RunFolder) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InvalidInputError(
            "Expected `tensorboard` to be installed for tensorboard=true, but it is not. "
            "Run: pip install 'mirrorshot[track]'"
        ) from error
    return SummaryWriter(str(run.path))
