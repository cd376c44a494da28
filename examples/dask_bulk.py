"""Classify many embeddings on a Dask cluster; the workers need mirrorshot, but not torch.

    pip install . "dask[array,distributed]"             # in a checkout of mirrorshot
    python examples/dask_bulk.py                        # random embeddings, two workers on this machine
    python examples/dask_bulk.py head embeddings.npy    # a classifier saved by `few.save("head")`

For another cluster use `Client("tcp://address:8786")`. Each worker gets the fitted classifier once (some kilobytes for
few examples), and reads, predicts and returns one block at a time.
"""

import sys

import dask.array as da
import numpy as np
from dask.distributed import Client

from mirrorshot import FewShotClassifier

BLOCK = 20_000  # embeddings per block


def classify(few: FewShotClassifier, X: da.Array) -> da.Array:
    """Return the class probabilities of embeddings, block by block."""
    X = X.rechunk((X.chunks[0], -1))
    n_classes = len(few.classes_)
    return X.map_blocks(few.predict_proba, chunks=(X.chunks[0], (n_classes,)), dtype=np.float64, meta=np.empty((0, 0)))


def example() -> tuple[FewShotClassifier, da.Array]:
    """Return a classifier of five classes, and random embeddings of these classes."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 64))
    few = FewShotClassifier().fit(np.repeat(centres, 5, 0) + rng.normal(size=(25, 64)), np.repeat(np.arange(5), 5))
    noise = da.random.default_rng(1).normal(size=(100_000, 64), chunks=(BLOCK, 64))
    return few, noise + centres[0]


def main() -> None:
    """Print how many embeddings each class has."""
    if len(sys.argv) not in (1, 3):
        sys.exit("Expected: python examples/dask_bulk.py [HEAD EMBEDDINGS.npy]")
    if len(sys.argv) == 3:
        few = FewShotClassifier.load(sys.argv[1])
        X = da.from_array(np.load(sys.argv[2], mmap_mode="r"), chunks=(BLOCK, -1))
    else:
        few, X = example()
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        counts = da.bincount(classify(few, X).argmax(1), minlength=len(few.classes_)).compute()
    for label, n in zip(few.classes_, counts, strict=True):
        print(f"{label}: {n}")


if __name__ == "__main__":
    main()
