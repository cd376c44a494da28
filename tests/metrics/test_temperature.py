import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from mirrorshot.metrics import apply_temperature, fit_temperature
from mirrorshot.types import InvalidInputError

INF = torch.inf


def predictions(seed=0, n=400, C=5, sharpness=3.0, true_temperature=1.0):
    """Log-probabilities, and labels drawn from them at a temperature."""
    rng = np.random.default_rng(seed)
    log_prob = torch.tensor(rng.normal(size=(n, C)) * sharpness).log_softmax(-1)
    prob = (log_prob / true_temperature).softmax(-1).numpy()
    y = torch.tensor([rng.choice(C, p=p / p.sum()) for p in prob])
    return log_prob, y


def mean_nll(log_prob, y, temperature, weight=None):
    terms = -(log_prob / temperature).log_softmax(-1).gather(-1, y[..., None])[..., 0]
    return float(terms.mean() if weight is None else (weight * terms).sum() / weight.sum())


def reference(log_prob, y, weight=None):
    """The same by scipy, which knows nothing of slopes."""
    result = minimize_scalar(
        lambda u: mean_nll(log_prob, y, np.exp(u), weight), bounds=np.log([0.01, 100]), options={"xatol": 1e-10}
    )
    return np.exp(result.x)


@pytest.mark.parametrize("true_temperature", [0.2, 0.7, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("sharpness", [0.3, 3.0, 30.0])
def test_fitted_temperature_is_that_of_scipy(true_temperature, sharpness):
    log_prob, y = predictions(true_temperature=true_temperature, sharpness=sharpness)
    fitted = fit_temperature(log_prob, y)
    expected = reference(log_prob, y)
    assert mean_nll(log_prob, y, fitted) <= mean_nll(log_prob, y, expected) + 1e-12
    if 0.011 < expected < 90:
        assert fitted == pytest.approx(expected, rel=1e-5)


def test_temperature_of_many_draws_is_the_one_they_were_drawn_at():
    log_prob, y = predictions(n=40_000, true_temperature=2.5)
    assert fit_temperature(log_prob, y) == pytest.approx(2.5, rel=0.03)


def test_slope_is_zero_at_the_fitted_temperature():
    log_prob, y = predictions(true_temperature=1.7)
    inverse = torch.tensor(1 / fit_temperature(log_prob, y), dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(inverse * log_prob, y).backward()
    assert abs(float(inverse.grad)) < 1e-12


def test_weights_count_like_repetitions():
    log_prob, y = predictions(n=60)
    times = torch.arange(60) % 3  # zero: not there
    repeated = fit_temperature(log_prob.repeat_interleave(times, 0), y.repeat_interleave(times))
    assert fit_temperature(log_prob, y, times.double()) == pytest.approx(repeated, rel=1e-10)
    assert fit_temperature(log_prob, y, times.double()) == pytest.approx(reference(log_prob, y, times), rel=1e-5)


def test_predictions_of_no_weight_may_be_anything():
    log_prob, y = predictions(n=50)
    padded = torch.cat([log_prob, torch.full((2, 5), torch.nan, dtype=torch.float64)])
    weight = torch.cat([torch.ones(50), torch.zeros(2)])
    fitted = fit_temperature(padded, torch.cat([y, torch.zeros(2, dtype=torch.int64)]), weight)
    assert fitted == pytest.approx(fit_temperature(log_prob, y), rel=1e-12)


def test_absent_classes_change_nothing():
    log_prob, y = predictions(n=80, C=3)
    absent = torch.full((80, 2), -INF, dtype=torch.float64)
    assert fit_temperature(torch.cat([log_prob, absent], -1), y) == pytest.approx(fit_temperature(log_prob, y))


def test_batches_of_tasks_are_pooled():
    log_prob, y = predictions(n=60)
    assert fit_temperature(log_prob.reshape(4, 15, 5), y.reshape(4, 15)) == fit_temperature(log_prob, y)


def test_scores_need_not_be_normalised():
    log_prob, y = predictions(n=60)
    shift = torch.arange(60.0, dtype=torch.float64)[:, None]
    assert fit_temperature(log_prob + shift, y) == pytest.approx(fit_temperature(log_prob, y), rel=1e-9)


def test_half_precision_is_fitted_in_double():
    log_prob, y = predictions(n=60)
    half = log_prob.half()
    assert fit_temperature(half, y) == fit_temperature(half.double(), y)


def test_right_predictions_get_the_lowest_temperature_and_wrong_ones_the_highest():
    log_prob = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    assert fit_temperature(log_prob, torch.tensor([0, 1])) == 0.01
    assert fit_temperature(log_prob, torch.tensor([1, 0])) == 100.0


def test_temperature_of_uniform_predictions_is_one():
    assert fit_temperature(torch.full((4, 3), 1 / 3).log(), torch.tensor([0, 1, 2, 0])) == 1.0


def test_excluded_right_classes_are_left_out():
    log_prob, y = predictions(n=50)
    excluded = torch.tensor([[-INF, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    fitted = fit_temperature(torch.cat([log_prob, excluded]), torch.cat([y, torch.tensor([0])]))
    assert fitted == pytest.approx(fit_temperature(log_prob, y), rel=1e-12)


def test_applied_temperature_is_a_softmax():
    log_prob, _ = predictions(n=7)
    torch.testing.assert_close(apply_temperature(log_prob, 2.5).exp(), (log_prob / 2.5).softmax(-1))
    torch.testing.assert_close(apply_temperature(log_prob, 1.0), log_prob)


def test_applied_temperature_keeps_absent_classes_absent():
    log_prob = torch.tensor([0.5, 0.5, 0.0]).log()
    assert apply_temperature(log_prob, 3.0).exp().tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("temperature", [0.0, -1.0, torch.nan, INF])
def test_a_temperature_that_is_none_is_refused(temperature):
    with pytest.raises(InvalidInputError, match=f"to be positive and finite, but got {temperature}"):
        apply_temperature(torch.zeros(1, 2), temperature)


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("log_prob", "y", "weight", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), None, r"got \(3, 2\) and \(4,\)"),
        (torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.ones(2), r"\(3,\), but got \(2,\)"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), None, "at least one prediction"),
        (torch.tensor([[0.0, torch.nan]]), torch.tensor([0]), None, "NaN, infinity or only -inf in 1 of 1"),
        (torch.tensor([[-INF, -INF]]), torch.tensor([0]), None, "only -inf in 1 of 1"),
        (torch.zeros(1, 2), torch.tensor([2]), None, "from 0 to 1, .* but got labels from 2 to 2"),
        (torch.zeros(1, 2), torch.tensor([0]), torch.tensor([-1.0]), "values from -1.0 to -1.0"),
        (torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.0]), "at least one positive `weight`"),
        (torch.tensor([[-INF, 0.0]]), torch.tensor([0]), None, "give the right class a probability"),
    ],
)
def test_wrong_predictions_are_explained(log_prob, y, weight, message):
    with pytest.raises(InvalidInputError, match=message):
        fit_temperature(log_prob, y, weight)
