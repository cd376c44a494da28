"""Classifiers that mirrorshot 0.1 wrote, with torch, are read bit by bit and answer as they did."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from mirrorshot import FewShotClassifier

FILES = Path(__file__).parent / "files"
MADE_AGAIN = ("mean", "var", "alpha", "slack", "chol")  # from the sites; files had them until 0.1
ANSWERS = json.loads((FILES / "heads_0.1.json").read_text("utf-8"))


@pytest.mark.parametrize("name", ["cosine", "sum"])
def test_a_file_of_0_1_is_read_bit_by_bit(name):
    path = FILES / f"head_0.1_{name}.safetensors"
    few, stored = FewShotClassifier.load(path), safetensors.numpy.load_file(path)
    again = few.state().tensors
    assert {key for key in stored if key not in again} == {f"posterior.{name}" for name in MADE_AGAIN}
    for key, array in again.items():
        assert array.dtype == stored[key].dtype
        assert np.array_equal(array, stored[key]), key


@pytest.mark.parametrize("name", ["cosine", "sum"])
def test_a_file_of_0_1_answers_as_it_did(name):
    few, expected = FewShotClassifier.load(FILES / f"head_0.1_{name}.safetensors"), ANSWERS[name]
    query = np.array(ANSWERS["query"])
    np.testing.assert_allclose(few.predict_proba(query), expected["proba"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(few.influence(query), expected["influence"], rtol=1e-8, atol=1e-10)
    assert few.elbo_ == expected["elbo"]


def test_the_examples_of_0_1_give_the_same_latents_with_the_same_kernel():
    few = FewShotClassifier.load(FILES / "head_0.1_sum.safetensors")  # names have other defaults today
    again = FewShotClassifier(few.kernel, centre="none", temperature=few.temperature_).fit(
        few.fitted_.examples.x, few.fitted_.examples.targets
    )
    query = np.array(ANSWERS["query"])
    mean, var = again.predict_latent(query)
    np.testing.assert_allclose(mean, few.predict_latent(query)[0], rtol=1e-7, atol=1e-8)
    prob = np.exp(few.fitted_.link.log_proba(mean, var))  # temperatures of today belong to another link
    np.testing.assert_allclose(prob, ANSWERS["sum"]["proba"], rtol=1e-7, atol=1e-8)
