"""Makes the pictures in docs/images: glyphs, handwritten digits and toy points only, all of it data that come along.

    python docs/gallery.py [--quick]

About a minute on two cores; with --quick some seconds, and pictures of a method that has hardly trained.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from mirrorshot import FewShotClassifier
from mirrorshot.demo import FULL, QUICK, run_demo
from mirrorshot.plotting import (
    RiskCoverageDisplay,
    UncertaintyMapDisplay,
    learning_curve_figure,
    reliability_figure,
    risk_coverage_figure,
    save_figure,
    save_pictures,
    with_elbo,
)
from mirrorshot.report import reliability_of

IMAGES = Path(__file__).parent / "images"
SEED = 3


def toy_points() -> tuple[np.ndarray, np.ndarray]:
    """Three classes in the plane; two of them overlap."""
    rng = np.random.default_rng(SEED)
    centres = np.array([[0.0, 0.0], [1.3, 0.3], [0.4, 2.6]])
    spread = np.array([0.55, 0.55, 0.35])
    y = np.repeat(np.arange(3), 6)
    return centres[y] + spread[y, None] * rng.normal(size=(18, 2)), np.array(["red fox", "dog", "owl"])[y]


def main() -> None:
    """Draw everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    settings = QUICK if quick else FULL._replace(n_episodes=240, n_validations=8, n_tasks=40, n_threads=1)
    result = run_demo(Path(tempfile.mkdtemp()), settings=settings)
    found = result.evaluations[1]
    X, y = toy_points()
    few = FewShotClassifier(kernel="rbf").fit(X, y)
    logs = {"mirror_gp": with_elbo(result.logs["mirror_gp"]), "protonet": result.logs["protonet"]}
    figures = {
        "reliability": reliability_figure([[reliability_of(e.raw, name) for name, e in found.items()]]),
        "risk_coverage": risk_coverage_figure(
            [RiskCoverageDisplay.from_risk(e.raw.risk, e.raw.scores["aurc"], name=name) for name, e in found.items()]
        ),
        "learning": learning_curve_figure(logs),
        "uncertainty_map": UncertaintyMapDisplay.from_estimator(few, X, y, n_points=80).plot().figure_,
        "episode": result.drawn[0].card.plot(n_queries=5).figure_,
    }
    IMAGES.mkdir(exist_ok=True)
    for name, figure in figures.items():
        if name == "episode":  # its photographs make an SVG of some hundred KiB
            paths = [IMAGES / "episode.png"]
            save_figure(figure, paths[0], dpi=90)
        else:
            paths = save_pictures(figure, IMAGES / name, dpi=90)
        for path in paths:
            print(path.relative_to(IMAGES.parent), f"{path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
