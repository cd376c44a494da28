import numpy as np
import pytest

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.bulk import in_chunks
from mirrorshot.types import InvalidInputError


@pytest.fixture(scope="module")
def few():
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(4, 8))
    return FewShotClassifier().fit(np.repeat(centres, 3, 0) + rng.normal(size=(12, 8)), list("abcd" * 3))


@pytest.fixture
def queries():
    return np.random.default_rng(1).normal(size=(101, 8))


@pytest.mark.parametrize("n_jobs", [1, 2, -1])
@pytest.mark.parametrize("chunk", [1, 10, 101, 1000])
def test_chunks_have_the_probabilities_of_one_call(few, queries, chunk, n_jobs):
    found = in_chunks(few.predict_proba, queries, chunk=chunk, n_jobs=n_jobs)
    np.testing.assert_allclose(found, few.predict_proba(queries), rtol=0, atol=1e-8)


def test_labels_and_further_arguments_are_split_too(few, queries):
    scores = np.random.default_rng(2).normal(size=(101, 4))
    assert in_chunks(few.predict, queries, chunk=7).tolist() == few.predict(queries).tolist()
    with_scores = FewShotClassifier().fit(queries[:12], list("abcd" * 3), prior_scores=scores[:12])
    expected = with_scores.predict_proba(queries, scores)
    np.testing.assert_allclose(
        in_chunks(with_scores.predict_proba, queries, scores, chunk=30), expected, rtol=0, atol=1e-8
    )


def test_a_file_is_read_piece_by_piece(few, queries, tmp_path):
    np.save(tmp_path / "x.npy", queries.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = few.predict_proba(queries.astype(np.float32))
    np.testing.assert_allclose(in_chunks(few.predict_proba, mapped, chunk=16), expected, rtol=0, atol=1e-8)


def test_an_error_of_a_chunk_is_raised(few, queries):
    queries[57] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        in_chunks(few.predict_proba, queries, chunk=10, n_jobs=2)


def test_wrong_arguments_are_explained(few, queries):
    with pytest.raises(InvalidInputError, match=r"a row for each query, but got arrays of \[101, 3\] rows"):
        in_chunks(few.predict_proba, queries, queries[:3])
    with pytest.raises(InvalidInputError, match="at least 1, or -1, but got 0 and 1"):
        in_chunks(few.predict_proba, queries, chunk=0)
    with pytest.raises(InvalidInputError, match="but got 10 and -2"):
        in_chunks(few.predict_proba, queries, chunk=10, n_jobs=-2)


def test_a_method_without_a_row_for_each_query_is_refused(few, queries):
    with pytest.raises(InvalidInputError, match=r"a row for each of 101 queries, but got shape \(1,\)"):
        in_chunks(few.suggest, queries)
    with pytest.raises(InvalidInputError, match=r"but got Uncertainty\. Of several arrays, choose one"):
        in_chunks(few.uncertainty, queries)
    total = in_chunks(lambda x: few.uncertainty(x).total, queries, chunk=20)
    np.testing.assert_allclose(total, few.uncertainty(queries).total, atol=1e-6)
