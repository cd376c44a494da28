import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mirrorshot
from mirrorshot.softmax import log_predictive, softmax_hessian, softmax_moments
from mirrorshot.softmax.integrals import class_pairs, integrate_moments
from mirrorshot.types import InvalidInputError

# The largest difference between NumPy and torch, relative to the size of the moments.
ROUNDING = {np.float64: 1e-11, np.float32: 2e-5}


@pytest.mark.parametrize("dtype", ROUNDING)
def test_moments_and_derivatives_of_arrays_are_those_of_tensors(dtype, hostile_latents, assert_close):
    for mean, var in hostile_latents(300, dtype=dtype):
        tensors = torch.from_numpy(mean), torch.from_numpy(var)
        max_std = float(np.sqrt(var.max()))
        assert_close(integrate_moments(mean, var, max_std), integrate_moments(*tensors, max_std), ROUNDING[dtype])
        assert_close(class_pairs(mean, var, max_std), class_pairs(*tensors, max_std), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ROUNDING)
def test_public_functions_take_arrays_and_return_arrays_of_the_same_type(dtype, assert_close):
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(2, 3, 4)).astype(dtype), rng.random((2, 3, 4)).astype(dtype)
    mask = np.array([[[True, True, True, False]], [[True] * 4]])
    tensors = torch.from_numpy(mean), torch.from_numpy(var)
    pairs = [
        (softmax_moments(mean, var, mask), softmax_moments(*tensors, torch.from_numpy(mask))),
        (softmax_hessian(mean, var, mask, max_std=1.0), softmax_hessian(*tensors, torch.from_numpy(mask), max_std=1.0)),
        ([log_predictive(mean, var, mask)], [log_predictive(*tensors, torch.from_numpy(mask))]),
        (
            [log_predictive(mean, var, temperature=var[..., 0])],
            [log_predictive(*tensors, temperature=tensors[1][..., 0])],
        ),
    ]
    for got, expected in pairs:
        assert all(isinstance(part, np.ndarray) and part.dtype == dtype for part in got)
        assert_close(got, expected, ROUNDING[dtype])


@pytest.mark.parametrize(("name", "bad"), [("mean", np.nan), ("mean", np.inf), ("var", np.nan), ("var", -1.0)])
def test_arrays_are_refused_as_tensors_are(name, bad):
    latents = {"mean": np.zeros((2, 3)), "var": np.ones((2, 3))}
    latents[name][1, 2] = bad
    with pytest.raises(InvalidInputError) as ours:
        softmax_moments(**latents)
    with pytest.raises(InvalidInputError) as theirs:
        softmax_moments(**{key: torch.from_numpy(value) for key, value in latents.items()})
    assert str(ours.value) == str(theirs.value)


def test_no_points_give_no_moments_of_arrays():
    moments = softmax_moments(np.zeros((0, 3)), np.zeros((0, 3)))
    assert moments.prob.shape == (0, 3)
    assert moments.logsumexp.shape == (0,)


def test_the_softmax_of_arrays_does_not_import_torch():
    program = (
        "import sys, numpy as np\n"
        "from mirrorshot.softmax import softmax_moments\n"
        "softmax_moments(np.zeros((2, 3)), np.ones((2, 3)))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_shapes_stand_beside_our_alias_of_arrays():
    # from NumPy 2.5 on jaxtyping refuses that of numpy.typing, when the module is imported
    for path in Path(mirrorshot.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"\b(Float|Int|Bool|Shaped|UInt8)\[\s*NDArray\b", text):
            assert not re.search(r"from numpy\.typing import .*NDArray", text), path
