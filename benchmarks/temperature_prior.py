"""Which predictive temperature is best on each embedding set, and how little the prior depends on any one of them.

For 5-way (or fewer) tasks at 1 and 5 shots with the default kernel: the one temperature that has the lowest NLL on the
test queries of all episodes; then the geometric mean over the sets, and the same mean with each set left out.
`mirrorshot.classifier.selection` centres its prior at 0.29 * shots^0.15 (0.29 at 1 shot, 0.37 at 5). The last columns
are a held-out check: NLL with that prior, and with a prior centred at the mean of the *other* sets.

    python benchmarks/temperature_prior.py [--episodes 100]
"""

import argparse
import time
from unittest.mock import patch

import numpy as np
import torch
from sklearn.metrics import log_loss

from _common import Episode, sample_episodes, save, table
from embedding_sets import SETS
from mirrorshot import FewShotClassifier
from mirrorshot.classifier import selection

SEED = 11
TEMPERATURES = np.geomspace(0.08, 1.2, 55)


def draw(name: str, n_shot: int, n_episodes: int) -> list[Episode]:
    X, y = SETS[name]()
    n_way = min(5, len(np.unique(y)))
    return sample_episodes(X, y, n_way=n_way, n_shot=n_shot, n_query=15, n_episodes=n_episodes, seed=SEED)


def nll_with_prior(episodes: list[Episode], centre: float, n_shot: int) -> float:
    """Mean NLL of the default classifier with the prior of its temperature centred elsewhere."""
    with patch.object(selection, "PRIOR_TEMPERATURE", centre / n_shot**0.15):
        models = [FewShotClassifier().fit(e.support_x, e.support_y) for e in episodes]
    pairs = zip(models, episodes, strict=True)
    return float(np.mean([log_loss(e.query_y, m.predict_proba(e.query_x)) for m, e in pairs]))


def best_temperature(episodes: list[Episode]) -> float:
    total = np.zeros(len(TEMPERATURES))
    for episode in episodes:
        model = FewShotClassifier(temperature=1.0).fit(episode.support_x, episode.support_y)
        log_prob = torch.tensor(model.predict_log_proba(episode.query_x))
        for i, temperature in enumerate(TEMPERATURES):
            scaled = torch.log_softmax(log_prob / temperature, -1)
            total[i] -= float(scaled.gather(1, torch.tensor(episode.query_y)[:, None]).mean())
    return float(TEMPERATURES[total.argmin()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    rows, result = [], {}
    for n_shot in (1, 5):
        episodes = {name: draw(name, n_shot, args.episodes) for name in SETS}
        best = {name: best_temperature(drawn) for name, drawn in episodes.items()}
        without = {
            left_out: float(np.exp(np.mean([np.log(t) for name, t in best.items() if name != left_out])))
            for left_out in best
        }
        mean = float(np.exp(np.mean(np.log(list(best.values())))))
        used = selection.PRIOR_TEMPERATURE * n_shot**0.15
        nll = {
            name: (nll_with_prior(drawn, used, n_shot), nll_with_prior(drawn, without[name], n_shot))
            for name, drawn in episodes.items()
        }
        result[f"{n_shot}-shot"] = {"best": best, "geometric_mean": mean, "mean_without": without, "nll": nll}
        for name in best:
            numbers = [f"{best[name]:.2f}", f"{without[name]:.2f}", *(f"{value:.3f}" for value in nll[name])]
            rows.append([str(n_shot), name, *numbers])
        rows.append([str(n_shot), "all", f"{mean:.2f}", "", "", ""])
    print(table(["shots", "set", "best", "mean of the others", "NLL, our prior", "NLL, prior of the others"], rows))
    save("temperature_prior", {"n_episodes": args.episodes, **result}, seed=SEED, started=started)


if __name__ == "__main__":
    main()
