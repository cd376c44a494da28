"""The classifier with all its methods in a process in which torch cannot be imported."""

import subprocess
import sys

import pytest

BLOCK = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
assert "torch" not in sys.modules
"""

METHODS = """
import tempfile
from pathlib import Path
import numpy as np
from sklearn.datasets import load_digits
from mirrorshot import FewShotClassifier
from mirrorshot.gp.kernels import RBF, Linear, Matern

X, y = load_digits(return_X_y=True)
X, y, query = X[:60], y[:60], X[60:70]
for kernel in ("cosine", "rbf", "matern", "linear", "polynomial", RBF(lengthscale=30.0) + Linear() * Matern(nu=1.5)):
    few = FewShotClassifier(kernel, outputscale="loo" if kernel == "rbf" else 10.0).fit(X, y)
    before = few.predict_proba(query)
    assert before.shape == (10, 10) and abs(before.sum(1) - 1).max() < 1e-9
    few.predict(query), few.predict_log_proba(query), few.predict_latent(query), few.score(X, y)
    few.uncertainty(query), few.novelty(query), few.novelty_threshold(), few.suspects(), few.suggest(query, 2)
    few.explain(query), few.influence(query), few.evidence(query, 2), few.predict_set(query), few.reject(query, 0.2)
    few.predict_set(query, guarantee=True), few.reject(query, 0.3, delta=0.3)
    path = Path(tempfile.mkdtemp()) / "head"
    few.save(path)
    again = FewShotClassifier.load(path)
    assert np.array_equal(again.predict_proba(query), before)
    few.add(X[3], 3).remove([0, 2])
    few.partial_fit(X[:2], y[:2])
    FewShotClassifier(kernel).partial_fit(X[:9], y[:9], classes=range(10)).predict_proba(query)
scores = np.zeros((60, 10))
FewShotClassifier().fit(X, y, sample_weight=1.0 + (y == 0), prior_scores=scores).predict_proba(query, scores[:10])
assert "torch" not in sys.modules
"""

EXPORT = """
import tempfile
from pathlib import Path
import numpy as np
from mirrorshot import FewShotClassifier
from mirrorshot.classifier.export import export_onnx

few = FewShotClassifier().fit(np.eye(4), [0, 1, 0, 1])
path = Path(tempfile.mkdtemp()) / "head.onnx"
export_onnx(few, path)
import onnxruntime
found = onnxruntime.InferenceSession(path).run(None, {"embeddings": np.eye(4, dtype=np.float32)})[0]
assert abs(found - few.predict_proba(np.eye(4))).max() < 1e-5
"""

ESTIMATOR = """
import warnings
warnings.simplefilter("ignore")
from sklearn.utils.estimator_checks import check_estimator
from mirrorshot import FewShotClassifier
check_estimator(FewShotClassifier())
"""

TORCH_ONLY = """
from mirrorshot.gp import kernels
try:
    kernels.GPyTorchKernel
except ModuleNotFoundError as error:
    assert "torch" in str(error)
else:
    raise AssertionError("it was there")
"""


@pytest.mark.parametrize(
    "program", [METHODS, EXPORT, ESTIMATOR, TORCH_ONLY], ids=["methods", "export", "checks", "rest"]
)
def test_it_works_where_torch_cannot_be_imported(program):
    done = subprocess.run([sys.executable, "-c", BLOCK + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
