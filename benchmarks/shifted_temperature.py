"""Calibration in new domains, with temperatures fitted to different kinds of tasks.

    MIRRORSHOT_DATA=FOLDER python benchmarks/shifted_temperature.py

The network of the encoder `glyphs` was trained on fonts. A Gaussian process (`mirror_gp`, cosine kernel of scale 10)
and class means (`protonet`) on its features classify handwritten digits, EMNIST and Omniglot, on which nothing is
fitted. The temperature is one number, fitted to tasks of the training characters ("training"), of other characters
("validation"), or of these under simulated shifts (`data/shifts.py`, "shifted"); or it depends on the task, as in runs
("rule"; `methods/calibrated.py`, `training/shifted.py`).
"""

import argparse
from typing import Any

import torch

from _common import save, table
from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.encoders.glyphs import GLYPHS_FILE, GLYPHS_KIND, GLYPHS_VERSION
from mirrorshot.files.sealed import load_sealed
from mirrorshot.methods import FewShotMethod, make_method
from mirrorshot.methods.calibrated import TaskTemperature
from mirrorshot.metrics import calibration_bins, expected_calibration_error, fit_temperature
from mirrorshot.networks.backbones import Backbone, make_backbone
from mirrorshot.training.build import build_preprocess
from mirrorshot.training.shifted import Found, fit_rule, predict_shifted
from mirrorshot.training.stream import NumberedTasks

N_WAY, N_QUERY = 5, 15
METHODS: dict[str, dict[str, Any]] = {
    "mirror_gp": {"kernel": "cosine", "kernel_options": {"outputscale": 10.0}, "temperature": False},
    "protonet": {},
}


def glyph_network() -> Backbone:
    """Return the packaged network for characters as a torch module."""
    arrays = load_sealed(GLYPHS_FILE, kind=GLYPHS_KIND, version=GLYPHS_VERSION).tensors
    network = make_backbone("conv4s", generator=torch.Generator())
    weights = {name: torch.as_tensor(a) for name, a in arrays.items() if name.startswith("network.")}
    network.load_state_dict({name.removeprefix("network."): weight for name, weight in weights.items()})
    return network


def numbered(source: ClassSource, dataset: Dataset, n_shot: int) -> NumberedTasks:
    """Return tasks of a source without augmentation."""
    return NumberedTasks(EpisodeSampler(source, N_WAY, n_shot, N_QUERY, seed=1), build_preprocess(dataset))


def rules(method: FewShotMethod, dataset: Dataset, n_shot: int, n_tasks: int) -> dict[str, TaskTemperature]:
    """Return the four temperatures by name."""
    assert dataset.train is not None
    assert dataset.val is not None
    training = predict_shifted(method, numbered(dataset.train, dataset, n_shot), None, n_tasks)
    tasks = numbered(dataset.val, dataset, n_shot)
    validation = predict_shifted(method, tasks, None, n_tasks)
    shifted = predict_shifted(method, tasks, build_preprocess(dataset), n_tasks)
    return {
        "training": one_temperature(training),
        "validation": one_temperature(validation),
        "shifted": one_temperature(shifted),
        "rule": fit_rule(method, tasks, build_preprocess(dataset), n_tasks),
    }


def one_temperature(found: Found) -> TaskTemperature:
    """Return the best common temperature of all tasks."""
    return TaskTemperature.constant(fit_temperature(found.log_prob.double(), found.y, found.weight))


def ece(found: Found, rule: TaskTemperature) -> float:
    """Return the ECE of predictions at the temperatures of a rule."""
    prob = (found.log_prob.double() / rule.of(found.signs.double())[:, None, None]).softmax(-1)
    return float(expected_calibration_error(calibration_bins(prob, found.y, 15)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=150, help="test tasks of each domain")
    parser.add_argument("--fit-tasks", type=int, default=100)
    options = parser.parse_args()
    rows = []
    dataset = load_dataset("glyphs")
    domains = {
        "digits": dataset.test,
        "emnist": load_dataset("omniglot_to_emnist", splits=["test"]).test,
        "omniglot": load_dataset("omniglot", splits=["test"]).test,
    }
    network = glyph_network()
    for name, settings in METHODS.items():
        method = make_method(name, network, **settings).eval()
        for n_shot in (1, 5):
            found = rules(method, dataset, n_shot, options.fit_tasks)
            for domain, source in domains.items():
                assert source is not None
                tested = predict_shifted(method, numbered(source, dataset, n_shot), None, options.tasks)
                accuracy = float((tested.log_prob.argmax(-1) == tested.y).double().mean())
                for fitted_to, rule in found.items():
                    mean = float(rule.of(tested.signs.double()).log().mean().exp())
                    row = {"method": name, "n_shot": n_shot, "domain": domain, "fitted_to": fitted_to}
                    rows.append({**row, "ece": ece(tested, rule), "temperature": mean, "accuracy": accuracy})
                print(rows[-1], flush=True)
            result = {"n_tasks": options.tasks, "n_fit_tasks": options.fit_tasks, "rows": rows}
            save("shifted_temperature", result, seed=1)
    keys = dict.fromkeys((row["method"], row["n_shot"], row["fitted_to"]) for row in rows)
    cells = {(row["method"], row["n_shot"], row["fitted_to"], row["domain"]): row["ece"] for row in rows}
    body = [[*map(str, key), *(f"{cells[(*key, domain)]:.3f}" for domain in domains)] for key in keys]
    print(table(["method", "shots", "temperature from", *domains], body))


if __name__ == "__main__":
    main()
