"""Tasks of the experiments: the paper's fixed episode, fresh ones, and synthetic ones."""

from typing import NamedTuple

import torch
from torch import Tensor

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.augment import evaluation_pictures
from mirrorshot.data.benchmarks import load_dataset
from mirrorshot.data.episodes import make_tasks
from mirrorshot.gp import mirror_descent
from mirrorshot.methods import FewShotMethod
from mirrorshot.training import build_method, build_preprocess
from mirrorshot.training.config import Config
from mirrorshot.training.presets import preset_settings
from mirrorshot.types import DataError, TaskBatch

N_WAY, N_QUERY = 5, 16
_SEED = 1  # seed of the weights and of fresh tasks
_CLASSES = range(1, 6)  # as in the released script


class Labelled(NamedTuple):
    """Tasks with the labels of their queries."""

    tasks: TaskBatch
    query_y: Tensor


class Laboratory:
    """An untrained method, and tasks of training classes without augmentation."""

    def __init__(self, data: str, n_shot: int) -> None:
        self.dataset, self.n_shot = load_dataset(data, splits=("train",)), n_shot
        assert self.dataset.train is not None
        self.source: ClassSource = self.dataset.train
        settings = preset_settings("paper", data, n_shot)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.config = Config(data=data, n_shot=n_shot, n_way=N_WAY, n_query=N_QUERY, seed=_SEED).replace(**settings)

    def method(self) -> FewShotMethod:
        """Return a new method with the preset's kernel and always the same weights."""
        return build_method(self.config, self.dataset).to(self.device)

    def fixed(self) -> Labelled:
        """Return the paper's episode: classes 1 to 5, each with its second block of images in file order.

        Classes with too few images for two blocks use the first block.
        """
        source = self.source.subset([self.source.class_names[c] for c in _CLASSES])
        size = self.n_shot + N_QUERY
        rows = []
        for label in range(N_WAY):
            own = (source.labels == label).nonzero()[:, 0]
            if len(own) < self.n_shot + 1:
                raise DataError(f"Expected {self.n_shot + 1} items of {source.class_names[label]}, but got {len(own)}.")
            rows.append(own[size : 2 * size] if len(own) >= 2 * size else own[:size])
        least = min(len(own) for own in rows)
        items = self._prepared(self._evaluated(source)[torch.cat([own[:least] for own in rows])])
        return _as_tasks(items.unflatten(0, (N_WAY, least))[None], self.n_shot)

    def fresh(self, n_tasks: int, first: int = 0) -> Labelled:
        """Return tasks of random classes and items, numbered from `first`."""
        source = self.source
        sampler = EpisodeSampler(source, N_WAY, self.n_shot, N_QUERY, seed=_SEED, on_small_class="fewer_queries")
        sampler.position = first
        index = sampler.index(range(first, first + n_tasks))
        rows = torch.cat([index.support, index.query], 1)
        used, place = rows.flatten().unique(return_inverse=True)
        sizes = None if source.sizes is None else source.sizes[used]
        part = ClassSource(source.items[used], source.labels[used], source.class_names, sizes)
        items = self._prepared(self._evaluated(part))[place].unflatten(0, rows.shape)
        n = index.support.shape[1]
        blocks = [part.unflatten(1, (N_WAY, -1)) for part in (items[:, :n], items[:, n:])]
        return _as_tasks(torch.cat(blocks, 2), self.n_shot)

    def _evaluated(self, source: ClassSource) -> Tensor:
        size = self.dataset.image_size
        return (evaluation_pictures(source, size) if size >= 64 else source).items

    def _prepared(self, items: Tensor) -> Tensor:
        preprocess, items = build_preprocess(self.dataset), items.to(self.device)
        return items.float() if preprocess is None else preprocess(items)


def _as_tasks(items: Tensor, n_shot: int) -> Labelled:
    """Convert items (T, C, n_shot + n_query, ...) to tasks."""
    support, query = items[:, :, :n_shot].flatten(1, 2), items[:, :, n_shot:].flatten(1, 2)
    return Labelled(*make_tasks(support, query, items.shape[1]))


@torch.no_grad()
def covariances(method: FewShotMethod, labelled: Labelled, *, nugget: float) -> tuple[Tensor, Tensor]:
    """Prior covariances of support and query in float64, and their labels.

    The network is in training mode and normalises over each task. `nugget` is white noise relative to the mean
    variance, for methods that need the inverse.
    """
    parts = []
    for t in range(labelled.tasks.n_tasks):
        z = torch.cat(method.train().features(labelled.tasks.select(slice(t, t + 1))), 1).double()
        parts.append(method.kernel.double()(z))  # type: ignore[operator]
    K = torch.cat(parts)
    noise = nugget * K.diagonal(dim1=-2, dim2=-1).mean(-1)
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return K + noise[..., None, None] * eye, torch.cat([labelled.tasks.support_y, labelled.query_y], 1)


def synthetic_tasks(n_shot: int, scale: float, *, n_query: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Eight tasks of five classes: covariances and labels of the support, and cross-covariances with the queries.

    Features are class centres plus noise of equal size in 64 dimensions, normalised to unit length. The kernel is the
    cosine kernel times `scale`, in float64.
    """
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(8, N_WAY, 1, 64, generator=generator, dtype=torch.float64)
    noise = torch.randn(8, N_WAY, n_shot + n_query, 64, generator=generator, dtype=torch.float64)
    z = torch.nn.functional.normalize(centre + noise, dim=-1)
    support, query = z[:, :, :n_shot].flatten(1, 2), z[:, :, n_shot:].flatten(1, 2)
    y = torch.arange(N_WAY).repeat_interleave(n_shot).expand(8, -1)
    return scale * (support @ support.mT)[:, None], y, scale * (support @ query.mT)[:, None]


def best_elbo(K: Tensor, y: Tensor) -> Tensor:
    """Return the optimal bound of each task."""
    return mirror_descent(K, y, n_way=N_WAY, max_steps=200, tol=1e-12)[1].elbo[:, -1]
