"""Record the public behaviour of the installed package, and compare two records.

    python scripts/behaviour.py record before.json
    python scripts/behaviour.py compare before.json after.json

A record has the public names of every module, the options of every command, and hashes of predictions: of
`FewShotClassifier` with every kernel, of the packaged encoder, and of small runs that are trained, tuned and evaluated
on the CPU. Predictions are equal only if all bits are. Paths of modules may differ between two records; removed names
are listed.
"""

import argparse
import hashlib
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the order of sums over several threads is not fixed

import numpy as np
import typer
from PIL import Image
from sklearn.datasets import load_digits

import mirrorshot
from mirrorshot import FewShotClassifier

KERNELS = ("cosine", "rbf", "matern", "linear", "polynomial")
TRAIN = (
    "train --data glyphs --method {method} --episodes 24 --seed 3 --set validate_every=12 --set n_validation_tasks=4"
)


def public_names() -> dict[str, list[str]]:
    """Return the modules that define or re-export each public name."""
    names: dict[str, list[str]] = {}
    for found in pkgutil.walk_packages(mirrorshot.__path__, "mirrorshot."):
        if found.name.endswith(("triton_kernels", "native.core")):  # needs Triton; is a shared library
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            is_own = getattr(value, "__module__", module.__name__).startswith("mirrorshot")
            if not name.startswith("_") and is_own and not isinstance(value, type(sys)):
                names.setdefault(name, []).append(found.name)
    return names


def command_options() -> dict[str, dict[str, str]]:
    """Return the options and the default values of every command."""
    from mirrorshot.cli import main as app

    group = typer.main.get_command(app)
    return {
        name: {" ".join([*p.opts, *p.secondary_opts]): repr(p.default) for p in command.params}
        for name, command in sorted(group.commands.items())  # type: ignore[attr-defined]
    }


def digest(*arrays: object) -> str:
    """Hash the bytes of some arrays."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.ascontiguousarray(np.asarray(array)).tobytes())
    return whole.hexdigest()[:16]


def classifier_predictions() -> dict[str, str]:
    """Hash all results of a fitted classifier on the digits."""
    X, y = load_digits(return_X_y=True)
    found = {}
    for kernel in KERNELS:
        few = FewShotClassifier(kernel).fit(X[:40], y[:40])
        query = X[40:80]
        found[f"{kernel}: proba"] = digest(few.predict_proba(query), few.elbo_, few.loo_log_likelihood_)
        found[f"{kernel}: decisions"] = digest(
            *few.uncertainty(query), few.novelty(query), few.predict_set(query), few.reject(query, 0.2).rejected,
            few.suggest(query, 3), few.suspects().row, few.explain(query), few.influence(query[:3]),
        )  # fmt: skip
        found[f"{kernel}: edited"] = digest(few.add(X[80], y[80]).remove([1, 5]).predict_proba(query).round(5))
    return found


def encoder_predictions() -> dict[str, str]:
    """Hash the embeddings of the packaged encoder, and probabilities made from them."""
    from mirrorshot.encoders import make_encoder

    digits = load_digits()
    images = [Image.fromarray(np.clip(image * 16, 0, 255).astype(np.uint8)) for image in digits.images[:60]]
    z = np.asarray(make_encoder("glyphs").encode(images))
    few = FewShotClassifier().fit(z[:30], digits.target[:30])
    return {"glyphs: embeddings": digest(z), "glyphs: proba": digest(few.predict_proba(z[30:]))}


def run_predictions() -> dict[str, str]:
    """Hash the evaluations of small runs."""
    found = {}
    for method in ("mirror_gp", "protonet", "dkt", "maml", "baseline_pp"):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            call(*TRAIN.format(method=method).split(), "--output", str(run), "--quiet")
            call("evaluate", str(run), "--n-tasks", "5", "--seeds", "1,2")
            result = json.loads((run / "evaluation.json").read_text())
            found[f"{method}: evaluation"] = digest(numbers(result))
    return found


def numbers(value: object) -> list[float]:
    """Return all numbers of a JSON value except times, sorted by key."""
    if isinstance(value, dict):
        return [n for key in sorted(value) if "second" not in key and "time" not in key for n in numbers(value[key])]
    if isinstance(value, list):
        return [n for part in value for n in numbers(part)]
    return [float(value)] if isinstance(value, (int, float)) else []


def call(*arguments: str) -> None:
    """Run a command of the package."""
    done = subprocess.run([sys.executable, "-m", "mirrorshot", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"mirrorshot {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def record(path: Path) -> None:
    """Write a record."""
    found = {
        "names": public_names(),
        "options": command_options(),
        "predictions": classifier_predictions() | encoder_predictions() | run_predictions(),
    }
    path.write_text(json.dumps(found, indent=1, sort_keys=True))
    print(f"{len(found['names'])} names, {len(found['options'])} commands, {len(found['predictions'])} predictions")


def compare(before: Path, after: Path) -> None:
    """Print the differences between two records."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    gone = sorted(set(old["names"]) - set(new["names"]))
    print(f"names: {len(old['names'])} before, {len(new['names'])} after, {len(gone)} gone")
    for name in gone:
        print(f"  gone: {name} ({', '.join(old['names'][name])})")
    for part in ("options", "predictions"):
        different = sorted(key for key in old[part] if old[part][key] != new[part].get(key))
        print(f"{part}: {len(old[part])} before, {len(different)} different")
        for key in different:
            print(f"  {key}: {difference(old[part][key], new[part].get(key))}")


def difference(old: object, new: object) -> str:
    """Describe a difference: the changed options of a command, or two hashes."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{old} -> {new}"
    changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return ", ".join(f"{key} ({old.get(key)} -> {new.get(key)})" for key in changed)


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="write a record").add_argument("file", type=Path)
    compared = commands.add_parser("compare", help="compare two records")
    compared.add_argument("before", type=Path)
    compared.add_argument("after", type=Path)
    options = parser.parse_args()
    record(options.file) if options.command == "record" else compare(options.before, options.after)


if __name__ == "__main__":
    main()
