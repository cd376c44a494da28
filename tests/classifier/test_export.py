import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.export import export_onnx
from mirrorshot.classifier.link import Link
from mirrorshot.files.lazy import MissingPackageError
from mirrorshot.gp.kernels import FAMILIES, RBF, Cosine, Kernel, Linear, Matern, Polynomial
from mirrorshot.types import InvalidInputError

KERNELS = {
    **{name: name for name in FAMILIES},
    "narrow": Cosine(outputscale=0.1),
    "wide": RBF(outputscale=200.0, lengthscale=2.0),
    "rough": Matern(nu=0.5, lengthscale=2.0),
    "once": Matern(nu=1.5, lengthscale=2.0),
    "sum": RBF(lengthscale=3.0) + Linear(outputscale=0.1),
    "product": RBF(lengthscale=3.0) * Polynomial(power=3, normalise=True),
}


def task(n_way, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_way, 8))
    X, y = np.repeat(centres, 3, 0) + 0.4 * rng.normal(size=(3 * n_way, 8)), np.repeat(np.arange(n_way), 3)
    queries = np.concatenate([centres + rng.normal(size=(n_way, 8)), X[:1], np.zeros((1, 8)), 50 * np.ones((1, 8))])
    return X, y, queries.astype(np.float32)


def run(path, queries):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"embeddings": queries})


@pytest.mark.parametrize("n_way", [2, 3, 20])
@pytest.mark.parametrize("name", KERNELS)
def test_onnxruntime_agrees_with_torch(tmp_path, name, n_way):
    X, y, queries = task(n_way)
    few = FewShotClassifier(kernel=KERNELS[name]).fit(X, y)
    export_onnx(few, tmp_path / "head.onnx")
    prob, mean, var = run(tmp_path / "head.onnx", queries)
    latent = few.predict_latent(queries)
    assert np.abs(prob - few.predict_proba(queries)).max() < 1e-5
    assert np.allclose(mean, latent[0], atol=1e-5, rtol=1e-5)
    assert np.allclose(var, latent[1], atol=1e-5, rtol=1e-5)


def test_far_away_a_linear_kernel_still_gives_probabilities(tmp_path):
    X, y, queries = task(3)
    few = FewShotClassifier(kernel="linear").fit(X, y)
    export_onnx(few, tmp_path / "head.onnx")
    prob, _, var = run(tmp_path / "head.onnx", 1000 * queries)
    assert var.max() > 256
    assert np.allclose(prob.sum(1), 1.0, atol=1e-5)
    assert np.isfinite(prob).all()


def test_any_number_of_queries_can_be_asked(tmp_path):
    X, y, queries = task(3)
    few = FewShotClassifier().fit(X, y)
    export_onnx(few, tmp_path / "head.onnx")
    for n in (1, 2, 5):
        assert np.allclose(run(tmp_path / "head.onnx", queries[:n])[0], few.predict_proba(queries[:n]), atol=1e-5)


def test_the_file_says_what_the_classes_are(tmp_path):
    X, y, _ = task(3)
    export_onnx(FewShotClassifier().fit(X, np.array(["a", "b", "c"])[y]), tmp_path / "head.onnx")
    model = onnx.load(tmp_path / "head.onnx")
    assert json.loads({p.key: p.value for p in model.metadata_props}["classes"]) == ["a", "b", "c"]
    assert [output.name for output in model.graph.output] == ["probabilities", "latent_mean", "latent_variance"]


def test_a_kernel_without_a_form_is_refused(tmp_path):
    gpytorch = pytest.importorskip("gpytorch")
    from mirrorshot.gp.kernels import GPyTorchKernel

    X, y, _ = task(2)
    kernel = GPyTorchKernel(gpytorch.kernels.RBFKernel()).double()
    assert isinstance(kernel, Kernel)
    with pytest.raises(InvalidInputError, match="no ONNX form"):
        export_onnx(FewShotClassifier(kernel=kernel).fit(X, y), tmp_path / "head.onnx")
    earlier = FewShotClassifier().fit(X, y)
    earlier.fitted_ = earlier.fitted_._replace(link=Link(0.3, 0.0, None))
    with pytest.raises(InvalidInputError, match="file of an earlier one"):
        export_onnx(earlier, tmp_path / "head.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    X, y, _ = task(2)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'mirrorshot\[onnx\]'"):
        export_onnx(FewShotClassifier().fit(X, y), tmp_path / "head.onnx")


def test_the_example_needs_only_numpy_and_onnxruntime(tmp_path):
    import subprocess
    from pathlib import Path

    X, y, queries = task(3)
    few = FewShotClassifier().fit(X, np.array(["a", "b", "c"])[y])
    export_onnx(few, tmp_path / "head.onnx")
    np.save(tmp_path / "x.npy", queries[:3])
    example = Path(__file__).parents[2] / "examples" / "onnx_numpy.py"
    code = (
        "import runpy, sys\n"
        "sys.modules.update(torch=None, mirrorshot=None, sklearn=None, scipy=None)\n"
        f"sys.argv = ['x', {str(tmp_path / 'head.onnx')!r}, {str(tmp_path / 'x.npy')!r}]\n"
        f"runpy.run_path({str(example)!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert [line.split()[1] for line in done.stdout.splitlines()] == few.predict(queries[:3]).tolist()


@pytest.mark.parametrize("kind", ["datetime64[D]", "S"])
def test_labels_without_a_form_in_json_are_refused(tmp_path, kind):
    few = FewShotClassifier().fit(np.eye(4), np.array([1, 2, 1, 2]).astype(kind))
    with pytest.raises(InvalidInputError, match="text, numbers or booleans, but got"):
        export_onnx(few, tmp_path / "head.onnx")
