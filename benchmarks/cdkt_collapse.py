"""What CDKT's bound makes of photographs: Conv4 on CUB at 32 x 32, a few steps, with published and with our settings.

    MIRRORSHOT_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/cdkt_collapse.py

Accuracy of 1-shot tasks of other classes, and the mean cosine between the features of pictures of different classes:
near 1, all pictures are alike. Written to results/cdkt_collapse.json.
"""

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F

from _common import save
from mirrorshot.backbones import make_backbone
from mirrorshot.config import Config
from mirrorshot.data import ClassSource, EpisodeSampler, load_dataset
from mirrorshot.methods import FewShotMethod, make_method
from mirrorshot.presets import preset_settings
from mirrorshot.training.optimizers import make_optimizers

SIDE, SEED = 32, 1
TASKS_PER_STEP, N_HELD_OUT = 4, 40
CDKT = "logistic_softmax_gp"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "MD-BFSC": ("mirror_gp", {"objective": "ml"}),
    "CDKT (ML), the preset default": (CDKT, preset_settings("default", "cub", 1, CDKT)["method_options"]),
    "CDKT (ML), tau 0.5, prior mean -0.5, scale 1": (CDKT, {"likelihood_temperature": 0.5, "prior_mean": -0.5}),
    "CDKT (ML), tau 0.2, as derived": (CDKT, {}),
    "CDKT (ML), tau 0.2, as released": (CDKT, {"released_bound": True}),
}


def small(split: ClassSource) -> ClassSource:
    """Its pictures at 32 x 32, normalised."""
    chunks = [
        F.interpolate(part.float(), size=SIDE, mode="bilinear", antialias=True) for part in split.items.split(200)
    ]
    x = torch.cat(chunks)
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    return split._replace(items=x, sizes=None)


@torch.no_grad()
def score(method: FewShotMethod, sampler: EpisodeSampler) -> tuple[float, float]:
    """Accuracy, and the mean cosine between the labelled items of different classes."""
    tasks, query_y = sampler.tasks(range(N_HELD_OUT))
    right = (method.predict(tasks).argmax(-1) == query_y).double().mean()
    z = F.normalize(method.features(tasks)[0], dim=-1)
    cosine = (z @ z.mT)[:, ~torch.eye(z.shape[1], dtype=torch.bool)].mean()
    return float(right), float(cosine)


def learn(
    name: str, options: dict[str, Any], source: ClassSource, held_out: ClassSource, n_steps: int
) -> dict[str, Any]:
    """Train as the preset for photographs does, on smaller ones."""
    backbone = make_backbone("conv4", generator=torch.Generator().manual_seed(SEED), image_size=SIDE)
    method = make_method(name, backbone, **{"kernel": "cosine", **options})
    settings = preset_settings("default", "cub", 1, name)
    config = Config().replace(**{key: settings[key] for key in ("optimizer", "lr", "kernel_lr")})
    optimizers = make_optimizers(method, config, is_cuda=False)
    train, test = (EpisodeSampler(part, 5, 1, 16, seed=SEED) for part in (source, held_out))
    curve, losses = [score(method, test)], []
    for _ in range(n_steps):
        tasks, query_y = train.draw(TASKS_PER_STEP)
        loss = method.loss(tasks, query_y).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss))
    curve.append(score(method.eval(), test))
    keys = ("accuracy", "cosine")
    ends = {when: dict(zip(keys, point, strict=True)) for when, point in zip(("before", "after"), curve, strict=True)}
    return {"options": options, **ends, "loss": [losses[0], losses[-1]]}


def main() -> None:
    """Train with each of the settings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="of 4 tasks each")
    n_steps = parser.parse_args().steps
    began = time.perf_counter()
    data = load_dataset("cub", splits=("train", "val"))
    source, held_out = (small(part) for part in (data.train, data.val) if part is not None)
    found = {}
    for title, (name, options) in SETTINGS.items():
        found[title] = learn(name, options, source, held_out, n_steps)
        after = found[title]["after"]
        print(f"{title}: accuracy {after['accuracy']:.3f}, cosine {after['cosine']:.3f}", flush=True)
    save("cdkt_collapse", {"n_steps": n_steps, "settings": found}, seed=SEED, started=began)


if __name__ == "__main__":
    main()
