"""Draws the figures in docs/images from glyphs, handwritten digits and toy points.

    python docs/gallery.py [--quick] [NAME ...]

All of them take about a minute on two cores; with --quick some seconds, and show a method that has hardly trained.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mirrorshot import FewShotClassifier
from mirrorshot.paper.demo import FULL, QUICK, run_demo
from mirrorshot.views import (
    ReliabilityDisplay,
    RiskCoverageDisplay,
    UncertaintyMapDisplay,
    learning_curve_figure,
    reliability_figure,
    risk_coverage_figure,
    save_figure,
    with_elbo,
)

IMAGES = Path(__file__).parent / "images"
NAMES = ["uncertainty_map", "reliability", "risk_coverage", "learning", "episode"]
SEED = 3


def toy_points() -> tuple[np.ndarray, np.ndarray]:
    """Three classes in the plane; two of them overlap."""
    rng = np.random.default_rng(SEED)
    centres = np.array([[0.0, 0.0], [1.3, 0.3], [0.4, 2.6]])
    spread = np.array([0.55, 0.55, 0.35])
    y = np.repeat(np.arange(3), 6)
    return centres[y] + spread[y, None] * rng.normal(size=(18, 2)), np.array(["red fox", "dog", "owl"])[y]


def uncertainty_map() -> dict[str, Figure]:
    """A map of toy points."""
    X, y = toy_points()
    few = FewShotClassifier(kernel="rbf").fit(X, y)
    return {"uncertainty_map": UncertaintyMapDisplay.from_estimator(few, X, y, n_points=80).plot().figure_}


def of_the_demo(*, is_quick: bool) -> dict[str, Figure]:
    """Two methods, trained on glyphs and tested on handwritten digits."""
    settings = QUICK if is_quick else FULL._replace(n_episodes=240, n_validations=8, n_tasks=40, n_threads=1)
    result = run_demo(Path(tempfile.mkdtemp()), settings=settings)
    found = result.evaluations[1]
    logs = {"mirror_gp": with_elbo(result.logs["mirror_gp"]), "protonet": result.logs["protonet"]}
    return {
        "reliability": reliability_figure(
            [[ReliabilityDisplay.from_calibration(e.raw, name=name) for name, e in found.items()]]
        ),
        "risk_coverage": risk_coverage_figure(
            [RiskCoverageDisplay.from_calibration(e.raw, name=name) for name, e in found.items()]
        ),
        "learning": learning_curve_figure(logs),
        "episode": result.cards["mirror_gp"][0].plot(n_queries=5).figure_,
    }


def main() -> None:
    """Draw the figures named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder of the figures")
    options = parser.parse_args()
    names = options.names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"expected names of {', '.join(NAMES)}, but got {', '.join(sorted(unknown))}")
    figures = uncertainty_map() if "uncertainty_map" in names else {}
    if set(names) - set(figures):
        figures |= of_the_demo(is_quick=options.quick)
    options.output.mkdir(exist_ok=True)
    for name in names:
        suffix = ".png" if name == "episode" else ""  # its photographs make an SVG of some hundred KiB
        paths = save_figure(figures[name], options.output / f"{name}{suffix}", dpi=90)
        for path in paths:
            print(path.name, f"{path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
