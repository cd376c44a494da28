"""Make the packaged prior of the encoder `glyphs`, and measure it on characters of fonts.

    python benchmarks/glyph_prior.py --choose   # shrinkage and share of the mean, leaving out kinds of shifts
    python benchmarks/glyph_prior.py --make     # writes src/mirrorshot/encoders/glyphs.prior, then measures it
    python benchmarks/glyph_prior.py            # measures the present file

The encoder was not trained on the characters (`load_glyphs("val")`). A domain is 100 of them under one draw of
simulated shifts (`data.shifts`). The prior is learned on four fifths of the characters and measured on the others
under other shifts. Defaults and prior are tested on the same tasks, with 15 queries per class. No handwriting is used.
"""

import argparse
import hashlib
import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from _common import sample_episodes, save, table
from mirrorshot import FewShotClassifier
from mirrorshot.classifier.prior import FeatureMap, Prior
from mirrorshot.classifier.prior_learning import OUTPUTSCALE, Row, measure, regress, rows_of
from mirrorshot.data.glyphs import load_glyphs
from mirrorshot.data.shifts import N_SHIFTS, draw_strengths, shift_images
from mirrorshot.encoders.glyphs import PRIOR_FILE, Glyphs
from real_embeddings import score

SEED = 2026
N_DOMAINS, N_MEASURED, N_CHARACTERS = 60, 12, 100
SHRINKAGES, CENTRES = (1.0, 0.85, 0.7, 0.5, 0.3), (0.5,)
SHRINKAGE, CENTRE = 0.7, 0.5  # of the packaged prior
STRONG = 0.3  # least strength of a shift in the domains that are left out
KINDS = ((5, 1), (5, 5), (15, 1), (15, 5))


class Domain(NamedTuple):
    """Embeddings of characters under one shift, their labels, and the strengths of the shift."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    strengths: NDArray[np.float32]


def make_domains(n: int, *, learning: bool) -> list[Domain]:
    """Return domains of the characters to learn from, or of the others; the first has no shift."""
    source, encoder = load_glyphs("val"), Glyphs()
    rng, generator = np.random.default_rng(SEED + learning), torch.Generator().manual_seed(SEED + learning)
    labels = source.labels.numpy()
    usable = [c for c in range(source.n_classes) if (c % 5 != 0) == learning]
    found = []
    for strengths in torch.cat([torch.zeros(1, N_SHIFTS), draw_strengths(n - 1, generator)]):
        chosen = rng.permutation(usable)[:N_CHARACTERS]
        rows = np.flatnonzero(np.isin(labels, chosen))
        shifted = shift_images(source.items[rows].float()[None] / 255, strengths[None], generator)[0, :, 0]
        pictures = [Image.fromarray(image) for image in (255 * shifted).round().byte().numpy()]
        found.append(Domain(encoder.encode(pictures).astype(np.float64), labels[rows], strengths.numpy()))
    return found


def rows_left_out(domains: list[Domain], settings: list[tuple[float, float]], of_a_kind: int) -> list[list[Row]]:
    """Leave out each kind of shift: for each setting, measure tasks in the domains with the strongest shifts of a kind.

    The statistics come from domains without this kind, and from the other half of the characters.
    """
    unit = FeatureMap(unit=True)
    parts = [(unit(d.X), d.y, d.strengths) for d in domains]
    found: list[list[Row]] = [[] for _ in settings]
    for kind in range(N_SHIFTS):
        statistics = measure([(X[y % 2 == 0], y[y % 2 == 0]) for X, y, strengths in parts if strengths[kind] == 0])
        strongest = sorted((p for p in parts if p[2][kind] > STRONG), key=lambda p: -p[2][kind])[:of_a_kind]
        for rows, (shrinkage, centre) in zip(found, settings, strict=True):
            after = statistics.map(shrinkage, root=False)
            for X, y, _ in strongest:
                rows += rows_of(after(X[y % 2 == 1]), y[y % 2 == 1], centre, SEED)
    return found


def choose(domains: list[Domain]) -> list[dict[str, Any]]:
    """Return the mean NLL at the best temperature for each setting, by kind of task."""
    settings = list(itertools.product(SHRINKAGES, CENTRES))
    kinds = {f"{n_way}-way {n_shot}-shot": (n_way, n_shot) for n_way, n_shot in KINDS}
    return [
        {"shrinkage": shrinkage, "centre": centre}
        | {
            name: round(float(np.mean([row.nll for row in rows if (row.n_way, row.n_shot) == kind])), 4)
            for name, kind in kinds.items()
        }
        for (shrinkage, centre), rows in zip(settings, rows_left_out(domains, settings, 3), strict=True)
    ]


def make(domains: list[Domain]) -> Prior:
    """Make the map from all domains, and the temperature from kinds of shifts that were left out of the map.

    Rejected: temperatures from other domains with kinds of shifts that are in the map. They are lower by 0.15 in the
    logarithm, and overconfident in new domains.
    """
    statistics = measure([(FeatureMap(unit=True)(domain.X), domain.y) for domain in domains])
    (rows,) = rows_left_out(domains, [(SHRINKAGE, CENTRE)], 5)
    learned_on = f"typeface characters under simulated shifts, weights {Glyphs().settings['digest']}"
    feature_map = statistics.map(SHRINKAGE, root=False)
    return Prior(feature_map, OUTPUTSCALE, CENTRE, regress(rows), "glyphs", learned_on)


def compare(domains: list[Domain], prior: Prior, n_tasks: int) -> list[dict[str, Any]]:
    """Compare defaults and prior: means over domains."""
    rows = []
    for n_way, n_shot in KINDS:
        for name, method in (("defaults", FewShotClassifier()), ("prior", FewShotClassifier(prior=prior))):
            found = [_score(method, domain, n_way, n_shot, n_tasks) for domain in domains]
            mean = {key: round(float(np.mean([each[key] for each in found])), 4) for key in found[0]}
            rows.append({"n_way": n_way, "n_shot": n_shot, "method": name, **mean})
            print(rows[-1], flush=True)
    return rows


def _score(method: FewShotClassifier, domain: Domain, n_way: int, n_shot: int, n_tasks: int) -> dict[str, float]:
    sizes = {"n_way": n_way, "n_shot": n_shot, "n_query": 15, "n_episodes": n_tasks}
    episodes = sample_episodes(domain.X, domain.y, **sizes, seed=SEED)
    prob = np.stack([method.fit(e.support_x, e.support_y).predict_proba(e.query_x) for e in episodes])
    found = score(prob, episodes[0].query_y)
    gap = found["confidence"] - float(found["accuracy"].mean())
    return {name: float(np.mean(found[name])) for name in ("accuracy", "nll", "ece")} | {"gap": gap, "|gap|": abs(gap)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--tasks", type=int, default=20, help="of each domain and kind")
    arguments = parser.parse_args()
    if arguments.choose:
        choices = choose(make_domains(N_DOMAINS, learning=True))
        print(table(list(choices[0]), [[str(value) for value in row.values()] for row in choices]))
        save("glyph_prior_choice", {"rows": choices}, seed=SEED)
        return
    if arguments.make:
        make(make_domains(N_DOMAINS, learning=True)).save(PRIOR_FILE)
        print(f"PRIOR_DIGEST of encoders/glyphs.py: {hashlib.sha256(PRIOR_FILE.read_bytes()).hexdigest()[:16]}")
    prior = Prior.load(PRIOR_FILE)
    print(f"{PRIOR_FILE.name}: {PRIOR_FILE.stat().st_size:,} bytes, {prior.centre}, {prior.temperature}", flush=True)
    rows = compare(make_domains(N_MEASURED, learning=False), prior, arguments.tasks)
    result = {"file_bytes": PRIOR_FILE.stat().st_size, "temperature": prior.temperature._asdict(), "rows": rows}
    save("glyph_prior", result, seed=SEED)


if __name__ == "__main__":
    main()
