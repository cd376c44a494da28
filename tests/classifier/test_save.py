import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.save import HEAD_VERSION
from mirrorshot.files.checkpoint import CheckpointError
from mirrorshot.files.sealed import save_sealed
from mirrorshot.gp.kernels import (
    FAMILIES,
    RBF,
    Linear,
    Matern,
    Polynomial,
    build_kernel,
    describe_kernel,
    kernel_state,
)
from mirrorshot.types import InvalidInputError

X, Y = load_digits(return_X_y=True)
KERNELS = {
    **{name: name for name in FAMILIES},
    "own": Matern(nu=0.5, lengthscale=20.0),
    "sum": RBF(lengthscale=20.0) + Linear(outputscale=0.001),
    "product": RBF(lengthscale=20.0) * Polynomial(power=3, normalise=True),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_predictions_after_loading_are_the_same_bit_by_bit(tmp_path, kernel):
    few = FewShotClassifier(kernel=KERNELS[kernel]).fit(X[:30], Y[:30])
    few.save(tmp_path / "head")
    again = FewShotClassifier.load(tmp_path / "head")
    for ask in ("predict_proba", "novelty", "explain", "predict"):
        assert np.array_equal(getattr(again, ask)(X[30:90]), getattr(few, ask)(X[30:90]))
    assert np.array_equal(again.suggest(X[30:60], 4), few.suggest(X[30:60], 4))
    assert np.array_equal(again.suspects().proba, few.suspects().proba)
    assert again.novelty_threshold() == few.novelty_threshold()
    assert again.elbo_ == few.elbo_


@pytest.mark.parametrize("kernel", ["cosine", "rbf", "linear", "polynomial"])
@pytest.mark.parametrize(("n", "n_way", "n_queries"), [(5, 2, 1), (12, 3, 7), (23, 5, 17), (41, 7, 33)])
def test_every_method_answers_the_same_bit_by_bit_whatever_the_size(tmp_path, kernel, n, n_way, n_queries):
    rng = np.random.default_rng(n)
    y = np.arange(n) % n_way
    x, queries = rng.normal(size=(n, 9)) + rng.normal(size=(n_way, 9))[y], rng.normal(size=(n_queries, 9))
    few = FewShotClassifier(kernel).fit(x[:-1], y[:-1]).add(x[-1], y[-1])
    few.save(tmp_path / "head")
    again = FewShotClassifier.load(tmp_path / "head")
    for ask in ("predict_latent", "predict_log_proba", "uncertainty", "novelty", "explain", "influence", "evidence"):
        for found, expected in zip(
            np.atleast_1d(getattr(again, ask)(queries)), np.atleast_1d(getattr(few, ask)(queries)), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
    assert again.novelty_threshold() == few.novelty_threshold()
    assert (again.start_, again.gap_) == (few.start_, few.gap_)


EDITS = {
    "nothing": lambda few: few,
    "add": lambda few: few.add(X[30:33], Y[30:33]),
    "add a class": lambda few: few.add(X[40], 17),
    "remove": lambda few: few.remove([1, 7, 12]),
    "forget a class": lambda few: few.remove(np.flatnonzero(few.fitted_.examples.targets == 3), drop_class=True),
    "learn a part": lambda few: few.partial_fit(X[30:40], Y[30:40]),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("start", ["fit", "partial_fit"])
def test_examples_can_be_changed_after_loading_as_before(tmp_path, start, edit):
    weight = np.where(np.arange(30) % 7 == 5, 0.0, 1.0 + np.arange(30) % 2)
    if start == "fit":
        few = FewShotClassifier().fit(X[:30], Y[:30], sample_weight=weight)
    else:  # the class 11 has no example
        few = FewShotClassifier().partial_fit(X[:30], Y[:30], classes=[*range(10), 11], sample_weight=weight)
    few.save(tmp_path / "head")
    again = EDITS[edit](FewShotClassifier.load(tmp_path / "head"))
    few = EDITS[edit](few)
    assert again.classes_.tolist() == few.classes_.tolist()
    exact = np.testing.assert_array_equal if edit == "nothing" else np.testing.assert_allclose
    for ask in ("predict_proba", "explain", "influence", "predict_set", "novelty"):
        exact(getattr(again, ask)(X[50:70]), getattr(few, ask)(X[50:70]))
    again.save(tmp_path / "again")
    few.save(tmp_path / "few")
    assert FewShotClassifier.load(tmp_path / "again").classes_.tolist() == few.classes_.tolist()


@pytest.mark.parametrize(
    "labels", [["a", "b"], [3, 7], [1.0, 2.0], [False, True], np.array(["ä b", "\u202ex"], dtype=object)]
)
def test_labels_come_back_as_they_were(tmp_path, labels):
    y = np.repeat(np.asarray(labels), 3)
    few = FewShotClassifier().fit(X[:6], y)
    few.save(tmp_path / "head")
    again = FewShotClassifier.load(tmp_path / "head")
    assert again.classes_.tolist() == few.classes_.tolist()
    assert again.predict(X[:3]).tolist() == few.predict(X[:3]).tolist()


def test_a_loaded_classifier_can_be_fitted_saved_and_cloned_again(tmp_path):
    few = FewShotClassifier("rbf", outputscale="loo", centre="mean").fit(X[:30], Y[:30], sample_weight=np.arange(30.0))
    few.save(tmp_path / "one")
    again = FewShotClassifier.load(tmp_path / "one")
    assert again.get_params() == few.get_params()
    again.save(tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert np.array_equal(again.fit(X[:30], Y[:30]).predict_proba(X[:5]), few.fit(X[:30], Y[:30]).predict_proba(X[:5]))


def test_what_was_not_fitted_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        FewShotClassifier().save(tmp_path / "head")
    assert not (tmp_path / "head").exists()


def test_a_foreign_kernel_cannot_be_saved(tmp_path):
    gpytorch = pytest.importorskip("gpytorch")
    from mirrorshot.gp.kernels import GPyTorchKernel

    few = FewShotClassifier(kernel=GPyTorchKernel(gpytorch.kernels.RBFKernel()).double()).fit(X[:30], Y[:30])
    with pytest.raises(InvalidInputError, match="cannot be written"):
        few.save(tmp_path / "head")


@pytest.mark.parametrize("name", [name for name in KERNELS if not isinstance(KERNELS[name], str)])
def test_a_kernel_is_made_again_from_its_description(name):
    kernel = KERNELS[name]
    again = build_kernel(json.loads(json.dumps(describe_kernel(kernel))), kernel_state(kernel))
    x = np.random.default_rng(0).normal(size=(1, 4, 5))
    assert np.array_equal(again(x), kernel(x))


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"name": "os.system", "options": {}},
        {"name": "rbf"},
        {"name": "rbf", "options": {"unheard_of": 1}},
        {"name": "matern", "options": {"nu": 0.7}},
        {"name": "sum", "parts": []},
        {"name": "sum", "parts": [{"name": "sum", "parts": [1]}]},
    ],
)
def test_a_description_that_is_none_is_refused(description):
    with pytest.raises(InvalidInputError, match="description of a kernel"):
        build_kernel(description, kernel_state(RBF()))


def test_a_loaded_classifier_is_the_same_to_the_last_bit_with_several_threads():
    code = (
        "import numpy as np\n"
        "from sklearn.datasets import load_digits\n"
        "from mirrorshot import FewShotClassifier\n"
        "X, y = load_digits(return_X_y=True)\n"
        "few = FewShotClassifier('rbf').fit(X[:390], y[:390])\n"
        "again = FewShotClassifier.from_state(few.state(), 'here')\n"
        "assert np.array_equal(again.predict_proba(X[390:400]), few.predict_proba(X[390:400]))\n"
    )
    threads = {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **threads}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def change(state, what):
    """A state whose checksum will be right and whose content is wrong."""
    tensors, info = dict(state.tensors), json.loads(json.dumps(state.info))
    match what:
        case "fewer sites":
            tensors["sites.shift"] = tensors["sites.shift"][..., 1:]
        case "no precisions":
            del tensors["sites.precision"]
        case "labels out of range":
            tensors["rows.y"] = tensors["rows.y"] + 100
        case "a class without example":
            info["classes"] = [*info["classes"], 99]
        case "negative weight":
            tensors["rows.weight"] = tensors["rows.weight"] - 3.0
        case "not finite":
            tensors["sites.shift"] = tensors["sites.shift"] * float("nan")
        case "single precision":
            tensors["rows.x"] = tensors["rows.x"].astype(np.float32)
        case "unknown kernel":
            info["kernel"]["name"] = "subprocess"
        case "one class":
            info["classes"] = info["classes"][:1]
        case "no classes":
            del info["classes"]
        case "unknown parameter":
            info["parameters"]["shell"] = "rm"
        case "wrong temperature":
            info["parameters"]["temperature"] = -1.0
        case "negative spread":
            info["numbers"]["temperature_std_"] = -0.1
        case "moderation that is text":
            info["numbers"]["moderation_"] = "0.03"
        case "wrong number of features":
            info["numbers"]["n_features_in_"] = 3
        case "other kind of labels":
            info["class_kind"] = "object"
    return tensors, info


@pytest.mark.parametrize(
    "what",
    [
        "fewer sites", "no precisions", "labels out of range", "not finite", "single precision", "unknown kernel",
        "one class", "no classes", "unknown parameter", "wrong temperature", "wrong number of features",
        "other kind of labels", "a class without example", "negative weight", "negative spread",
        "moderation that is text",
    ],
)  # fmt: skip
def test_content_that_does_not_fit_is_refused_even_with_a_right_checksum(tmp_path, what):
    few = FewShotClassifier().fit(X[:20], Y[:20])
    tensors, info = change(few.state(), what)
    save_sealed(tmp_path / "head", tensors, info, kind="head", version=HEAD_VERSION)
    with pytest.raises(CheckpointError, match="Expected"):
        FewShotClassifier.load(tmp_path / "head")


def test_a_header_that_promises_too_much_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "head").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(CheckpointError, match="do not begin as one"):
        FewShotClassifier.load(tmp_path / "head")


@pytest.mark.parametrize("kernel", ["linear", "rbf", "matern"])
@pytest.mark.parametrize("size", [1e-90, 1e90])
def test_a_classifier_of_embeddings_of_any_size_can_be_read_again(tmp_path, kernel, size):
    few = FewShotClassifier(kernel).fit(size * X[:20], Y[:20])
    few.save(tmp_path / "head")
    again = FewShotClassifier.load(tmp_path / "head")
    assert np.array_equal(again.predict_proba(size * X[20:30]), few.predict_proba(size * X[20:30]))


@pytest.mark.parametrize(
    "labels",
    [np.where(Y > 4, 2**63 + 3, 1).astype(np.uint64), np.array(["a\0" if y > 4 else "a" for y in Y], dtype=object)],
)
def test_nothing_is_written_that_could_not_be_read_again(tmp_path, labels):
    few = FewShotClassifier().fit(X[:20], labels[:20])
    with pytest.raises(InvalidInputError, match="Expected a classifier that a file can hold, but its"):
        few.save(tmp_path / "head")
    assert not any(tmp_path.iterdir())
