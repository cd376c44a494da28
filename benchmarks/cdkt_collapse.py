"""Collapse of features by CDKT's bound: short trainings of Conv4 on CUB at 32 x 32, with published and our settings.

    MIRRORSHOT_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/cdkt_collapse.py

Reported are the accuracy on 40 1-shot tasks of validation classes, and the mean cosine between features of different
classes: near 1, all images look alike. Settings with the optimiser of the preset `paper`, which differ by a few points,
are trained with several seeds, the others with one. Rows are written to results/cdkt_collapse.json one by one; rows of
other sizes are dropped, rows excluded by `--only` stay.
"""

import argparse
import json
import re
import statistics
from typing import Any

import torch
import torch.nn.functional as F

from _common import RESULTS, save
from mirrorshot.data import ClassSource, EpisodeSampler, load_dataset
from mirrorshot.methods import FewShotMethod, make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.paper.released_cdkt import Departures, ReleasedLogisticSoftmaxGP
from mirrorshot.training.config import Config
from mirrorshot.training.optimizers import make_optimizers
from mirrorshot.training.presets import preset_settings

SIDE, SEED, N_HELD_OUT, CHUNK = 32, 1, 40, 5
CDKT = "logistic_softmax_gp"
AS_RELEASED = {"released_training": True, "kernel_options": {"n_way": 5, "outputscale": 0.693}}
SETTINGS: dict[str, tuple[str, dict[str, Any], str]] = {  # method, options, and preset of the optimiser
    "MD-BFSC": ("mirror_gp", {"objective": "ml"}, "default"),
    "CDKT (ML), from the prior": (CDKT, {}, "default"),
    "CDKT (ML), from the prior, the paper's optimiser": (CDKT, {}, "paper"),
    "CDKT (ML), from the prior, released bound, the paper's optimiser": (CDKT, {"released_bound": True}, "paper"),
    "CDKT (ML), from the prior, tau 0.5, prior mean -1, scale 0.25": (
        CDKT,
        {"likelihood_temperature": 0.5, "prior_mean": -1.0, "n_steps": 5, "kernel_options": {"outputscale": 0.25}},
        "default",
    ),
    "CDKT (ML), from the labels (the preset default)": (CDKT, {"start": "labels"}, "default"),
    "CDKT (ML), from the labels, 30 steps": (CDKT, {"start": "labels", "n_steps": 30}, "default"),
    "CDKT (ML), from the labels, the paper's optimiser": (CDKT, {"start": "labels"}, "paper"),
    "CDKT (ML), as released": (CDKT, AS_RELEASED, "paper"),
    **{
        f"CDKT (ML), as released, without {name}": (CDKT, AS_RELEASED | {"departures": {name: False}}, "paper")
        for name in Departures._fields
        if name != "held_tilt"
    },
    "CDKT (ML), as released, without held_tilt and dropped_quadratic": (
        CDKT,
        AS_RELEASED | {"departures": {"held_tilt": False, "dropped_quadratic": False}},
        "paper",
    ),
    "CDKT (ML), as released, without any": (
        CDKT,
        AS_RELEASED | {"departures": dict.fromkeys(Departures._fields, False)},
        "paper",
    ),
    "CDKT (ML), as released, without any, 30 steps": (
        CDKT,
        AS_RELEASED | {"departures": dict.fromkeys(Departures._fields, False), "n_steps": 30},
        "paper",
    ),
    "CDKT (ML), as released, 30 steps": (CDKT, AS_RELEASED | {"n_steps": 30}, "paper"),
    "CDKT (ML), as released, one scale of 1 for all classes": (CDKT, {"released_training": True}, "paper"),
}


def small(split: ClassSource) -> ClassSource:
    """Resize images to 32 x 32 and normalise them."""
    chunks = [
        F.interpolate(part.float(), size=SIDE, mode="bilinear", antialias=True) for part in split.items.split(200)
    ]
    x = torch.cat(chunks)
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    return split._replace(items=x, sizes=None)


@torch.no_grad()
def score(method: FewShotMethod, sampler: EpisodeSampler) -> dict[str, float]:
    """Return accuracy, and the mean cosine between support items of different classes."""
    found = []
    for start in range(0, N_HELD_OUT, CHUNK):
        tasks, query_y = sampler.tasks(range(start, start + CHUNK))
        right = (method.predict(tasks).argmax(-1) == query_y).double().mean()
        z = F.normalize(method.embed(tasks.support_x), dim=-1)
        found.append(torch.stack([right, (z @ z.mT)[:, ~torch.eye(z.shape[1], dtype=torch.bool)].mean()]))
    return dict(zip(("accuracy", "cosine"), torch.stack(found).mean(0).tolist(), strict=True))


def make(name: str, options: dict[str, Any], seed: int) -> FewShotMethod:
    backbone = make_backbone("conv4", generator=torch.Generator().manual_seed(seed), image_size=SIDE)
    method = ReleasedLogisticSoftmaxGP(backbone, **options) if name == CDKT else make_method(name, backbone, **options)
    method.seed(seed)
    return method


def learn(
    name: str, options: dict[str, Any], preset: str, source: ClassSource, held_out: ClassSource, n_tasks: int, seed: int
) -> dict[str, Any]:
    """Train with the optimiser and tasks per step of a preset for photographs, on smaller images."""
    method = make(name, {"kernel": "cosine", **options}, seed)
    settings = preset_settings(preset, "cub", 1, name)
    shared = ("optimizer", "lr", "kernel_lr", "tasks_per_step")
    config = Config().replace(**{key: settings[key] for key in shared if key in settings})
    optimizers = make_optimizers(method, config, is_cuda=False)
    train, test = (EpisodeSampler(part, 5, 1, 16, seed=seed) for part in (source, held_out))
    losses = []
    for _ in range(n_tasks // config.tasks_per_step):
        tasks, query_y = train.draw(config.tasks_per_step)
        loss = method.loss(tasks, query_y).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return {"seed": seed, **score(method.eval(), test), "loss": [losses[0], losses[-1]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=160, help="training tasks")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each setting of the preset paper")
    parser.add_argument("--only", default="", help="settings whose names match this")
    args = parser.parse_args()
    data = load_dataset("cub", splits=("train", "val"))
    source, held_out = (small(part) for part in (data.train, data.val) if part is not None)
    common = {"n_tasks": args.tasks, "n_validation_tasks": N_HELD_OUT, "image_side": SIDE, "kernel": "cosine"}
    fresh = make("mirror_gp", {"kernel": "cosine"}, SEED)
    common["untrained"] = score(fresh, EpisodeSampler(held_out, 5, 1, 16, seed=SEED))
    for title, (name, options, preset) in SETTINGS.items():
        if not re.search(args.only, title):
            continue
        seeds = range(SEED, SEED + (args.seeds if preset == "paper" else 1))
        runs = [learn(name, options, preset, source, held_out, args.tasks, seed) for seed in seeds]
        mean = {key: statistics.fmean(run[key] for run in runs) for key in ("accuracy", "cosine")}
        row = {"method": name, "options": options, "preset": preset, **mean, "runs": runs}
        print(f"{title}: accuracy {mean['accuracy']:.3f}, cosine {mean['cosine']:.3f}", flush=True)
        rows = {**earlier_rows(common), title: row}
        ordered = {key: rows[key] for key in SETTINGS if key in rows}
        save("cdkt_collapse", {**common, "settings": ordered}, seed=SEED)


def earlier_rows(common: dict[str, Any]) -> dict[str, Any]:
    """Return rows of the result file that were measured with the same sizes."""
    path = RESULTS / "cdkt_collapse.json"
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    same = all(found.get(key) == value for key, value in common.items() if key != "untrained")
    return dict(found["settings"]) if same and "settings" in found else {}


if __name__ == "__main__":
    main()
