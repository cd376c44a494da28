"""Convergence of the inner loop: safeguarded mirror descent, fixed step sizes, and vanilla gradient descent.

Tasks are synthetic, with cosine kernels (class centres and noise of equal size in 64 dimensions). Printed is the gap in
nats per point, of the worst task, after each number of steps. One step is one evaluation of the moments and one
factorisation on the accepted path; `evals` also counts rejected ones.

    python benchmarks/convergence.py [--quick]
"""

import argparse

import torch
from torch import Tensor

from _common import save, table
from mirrorshot.gp import amortise, gradient_descent, mirror_descent
from mirrorshot.gp.gaussian import condition

SEED = 0
SHOWN = (1, 2, 3, 4, 6, 10)


def cosine_tasks(n_tasks: int, n_way: int, n_shot: int, scale: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    centre = torch.randn(n_tasks, n_way, 1, 64, generator=generator, dtype=torch.float64)
    x = centre + torch.randn(n_tasks, n_way, n_shot, 64, generator=generator, dtype=torch.float64)
    x = torch.nn.functional.normalize(x.reshape(n_tasks, -1, 64), dim=-1)
    y = torch.arange(n_way).repeat_interleave(n_shot).expand(n_tasks, -1)
    return scale * (x @ x.mT)[:, None], y


def measure(n_way: int, n_shot: int, scale: float, n_tasks: int) -> dict[str, object]:
    K, y = cosine_tasks(2 * n_tasks, n_way, n_shot, scale)
    learn, test = slice(0, n_tasks), slice(n_tasks, None)
    solved, reference = mirror_descent(K, y, n_way=n_way, max_steps=60, tol=1e-12)
    sites = type(solved.sites)(*(s[learn] for s in solved.sites))
    start = amortise(K[learn], y[learn], condition(K[learn], sites))
    optimum = reference.elbo[test, -1:]
    N = n_way * n_shot

    def gaps(elbo: Tensor) -> list[float]:
        gap = ((optimum - elbo) / N).clamp(min=0.0).amax(0)
        return [float(gap[min(s, len(gap) - 1)]) for s in SHOWN]

    runs = {
        "prior": mirror_descent(K[test], y[test], n_way=n_way, max_steps=10, tol=1e-10)[1],
        "amortised": mirror_descent(K[test], y[test], n_way=n_way, max_steps=10, tol=1e-10, start=start)[1],
        "rho = 1": mirror_descent(K[test], y[test], n_way=n_way, max_steps=10, step_size=1.0)[1],
        "rho = 0.5": mirror_descent(K[test], y[test], n_way=n_way, max_steps=10, step_size=0.5)[1],
    }
    result: dict[str, object] = {"n_way": n_way, "n_shot": n_shot, "scale": scale, "n_tasks": n_tasks}
    for name, info in runs.items():
        extra = (info.n_evaluations - info.n_steps - 1).double()
        result[name] = {
            "gap": gaps(info.elbo),
            "start": float(((optimum[:, 0] - info.elbo[:, 0]) / N).amax()),
        }
        result[name]["rejected_per_step"] = float(extra.sum() / info.n_steps.sum())  # type: ignore[index]
    if N <= 85:
        _, info = gradient_descent(K[test], y[test], n_way=n_way, max_steps=10, step_size=1.0, form="cholesky")
        result["gradient descent"] = {"gap": gaps(info.elbo)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small tasks only")
    args = parser.parse_args()
    sizes = [(2, 1), (2, 5), (2, 17), (5, 1), (5, 5), (5, 17), (20, 1)]
    sizes += [] if args.quick else [(20, 5), (20, 17)]
    results, rows = [], []
    for n_way, n_shot in sizes:
        for scale in (0.7, 3.0, 10.0, 30.0):
            n_tasks = 8 if n_way * n_shot <= 100 else 2
            found = measure(n_way, n_shot, scale, n_tasks)
            results.append(found)
            for name in ("prior", "amortised", "rho = 1", "rho = 0.5", "gradient descent"):
                if name in found:
                    gap = found[name]["gap"]  # type: ignore[index]
                    rows.append([str(n_way), str(n_shot), f"{scale:g}", name, *(f"{g:.0e}" for g in gap)])
                    print(" | ".join(rows[-1]), flush=True)
    print()
    print(table(["ways", "shots", "scale", "method", *(f"{s} steps" for s in SHOWN)], rows))
    for name, steps, promise in (
        ("amortised", 2, 1e-3),
        ("prior", 4, 1e-3),
        ("prior", 10, 1e-6),
        ("amortised", 10, 1e-6),
    ):
        worst = max(r[name]["gap"][SHOWN.index(steps)] for r in results)  # type: ignore[index]
        print(f"{name}, {steps} steps: worst gap {worst:.1e} nats per point (promised {promise:.0e})")
    for name in ("prior", "amortised"):
        cost = max(r[name]["rejected_per_step"] for r in results)  # type: ignore[index]
        print(f"{name}: the safeguard rejects at most {cost:.2f} evaluations per accepted step")
    save("convergence", {"steps": SHOWN, "rows": results}, seed=SEED)


if __name__ == "__main__":
    main()
