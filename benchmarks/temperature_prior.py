"""Which predictive temperature is best on each embedding set, and how little the prior depends on any one of them.

For 5-way (or fewer) tasks at 1 and 5 shots with the default kernel: the one temperature that has the lowest NLL on the
test queries of all episodes; then the geometric mean over the sets, and the same mean with each set left out.
`mirrorshot.selection` centres its prior at 0.29 * shots^0.15 (0.29 at 1 shot, 0.37 at 5).

    python benchmarks/temperature_prior.py [--episodes 100]
"""

import argparse
import time

import numpy as np
import torch

from _common import sample_episodes, save, table
from embedding_sets import SETS
from mirrorshot import FewShotClassifier

SEED = 11
TEMPERATURES = np.geomspace(0.08, 1.2, 55)


def best_temperature(name: str, n_shot: int, n_episodes: int) -> float:
    X, y = SETS[name]()
    n_way = min(5, len(np.unique(y)))
    episodes = sample_episodes(X, y, n_way=n_way, n_shot=n_shot, n_query=15, n_episodes=n_episodes, seed=SEED)
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
    found = {n_shot: {name: best_temperature(name, n_shot, args.episodes) for name in SETS} for n_shot in (1, 5)}
    rows, result = [], {}
    for n_shot, best in found.items():
        without = {
            left_out: float(np.exp(np.mean([np.log(t) for name, t in best.items() if name != left_out])))
            for left_out in best
        }
        mean = float(np.exp(np.mean(np.log(list(best.values())))))
        result[f"{n_shot}-shot"] = {"best": best, "geometric_mean": mean, "mean_without": without}
        rows += [[str(n_shot), name, f"{best[name]:.2f}", f"{without[name]:.2f}"] for name in best]
        rows.append([str(n_shot), "all", f"{mean:.2f}", ""])
    print(table(["shots", "set", "best temperature", "mean of the other sets"], rows))
    save("temperature_prior", {"n_episodes": args.episodes, **result}, seed=SEED, started=started)


if __name__ == "__main__":
    main()
