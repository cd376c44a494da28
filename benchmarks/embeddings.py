"""FewShotClassifier with its defaults against logistic regression at its best C, on embeddings that need no download.

The best C of {1, 10, 100, 1000} is the one with the lowest NLL on the *test queries*: nobody could choose it.
FewShotClassifier sees the support set only. 5-way (or all classes where there are fewer), 15 queries
per class, the same episodes for all.

    python benchmarks/embeddings.py [--episodes 600] [--sets digits wine ...]
"""

import argparse
import time
import warnings

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression

from _common import Episode, sample_episodes, save, table
from embedding_sets import SETS
from mirrorshot import FewShotClassifier
from mirrorshot.metrics import accuracy, calibration_bins, expected_calibration_error, nll

SEED = 2024


def predict(model: BaseEstimator, episodes: list[Episode]) -> NDArray[np.float64]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # logistic regression does not always converge
    return np.stack([model.fit(e.support_x, e.support_y).predict_proba(e.query_x) for e in episodes])


def score(prob: NDArray[np.float64], y: NDArray[np.int64]) -> dict[str, float]:
    p, labels = torch.tensor(prob).clamp(min=1e-15), torch.tensor(y)
    p = p / p.sum(-1, keepdim=True)
    per_task = {"accuracy": accuracy(p, labels), "nll": nll(p, labels)}
    result = {name: float(values.mean()) for name, values in per_task.items()}
    result |= {f"{name}_ci95": float(1.96 * v.std() / len(v) ** 0.5) for name, v in per_task.items()}
    return result | {"ece": float(expected_calibration_error(calibration_bins(p, labels)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    started = time.perf_counter()
    models = {"mirrorshot": FewShotClassifier()}
    models |= {f"LR C={C}": LogisticRegression(C=C, max_iter=1000) for C in (1, 10, 100, 1000)}
    results, rows = [], []
    for name in args.sets:
        X, y = SETS[name]()
        for n_shot in (1, 5):
            episodes = sample_episodes(
                X,
                y,
                n_way=min(5, len(np.unique(y))),
                n_shot=n_shot,
                n_query=15,
                n_episodes=args.episodes,
                seed=SEED,
            )
            labels = np.stack([e.query_y for e in episodes])
            parts = [episodes[i :: args.jobs] for i in range(args.jobs)]
            scores = {}
            for model_name, model in models.items():
                found = Parallel(n_jobs=args.jobs)(delayed(predict)(model, part) for part in parts)
                prob = np.empty((len(episodes), *found[0].shape[1:]))
                for i, piece in enumerate(found):
                    prob[i :: args.jobs] = piece
                scores[model_name] = score(prob, labels)
            best = min((m for m in models if m != "mirrorshot"), key=lambda m: scores[m]["nll"])
            ours, theirs = scores["mirrorshot"], scores[best]
            rows.append(
                [
                    name,
                    str(n_shot),
                    best.removeprefix("LR "),
                    *(f"{s['accuracy']:.3f} / {s['nll']:.3f} / {s['ece']:.3f}" for s in (theirs, ours)),
                    f"{ours['nll'] - theirs['nll']:+.3f}",
                ]
            )
            print(" ".join(rows[-1]), flush=True)
            results.append({"set": name, "n_shot": n_shot, "n_episodes": args.episodes, "scores": scores})
    print()
    print(
        table(
            [
                "set",
                "shots",
                "best C",
                "LR: acc / NLL / ECE",
                "mirrorshot: acc / NLL / ECE",
                "NLL difference",
            ],
            rows,
        )
    )
    save("embeddings", {"rows": results}, seed=SEED, started=started)


if __name__ == "__main__":
    main()
