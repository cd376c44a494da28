import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from mirrorshot.gp import mirror_descent
from mirrorshot.gp.gaussian import covariance
from mirrorshot.gp.gradient import evaluate_plain, evaluate_whitened, gradient_descent
from mirrorshot.gp.objective import Problem, make_problem
from mirrorshot.types import InvalidInputError

FORMS = ("plain", "cholesky")
both_forms = pytest.mark.parametrize("form", FORMS)


def random_task(
    T: int = 3, n_way: int = 3, N: int = 5, *, scale: float = 3.0, per_class: bool = False, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Well-conditioned RBF covariances and labels that follow the points."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(T, N, 2, generator=generator, dtype=torch.float64)
    y = torch.arange(N).remainder(n_way).expand(T, N)
    x = x + y[..., None]
    K = torch.exp(-0.5 * (x[:, :, None] - x[:, None]).square().sum(-1))[:, None]
    K = scale * (0.9 * K + 0.1 * torch.eye(N, dtype=torch.float64))
    if per_class:
        K = K * torch.linspace(0.5, 1.5, n_way, dtype=torch.float64)[:, None, None]
    return K, y


def singular_task() -> tuple[Tensor, Tensor]:
    """A linear kernel of rank two at six points."""
    x = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(6).remainder(3).expand(2, 6)
    return 2 * (x @ x.mT)[:, None], y


def problem_of(K: Tensor, y: Tensor, n_way: int) -> Problem:
    return make_problem(K, y, n_way, None, None, None, validate=True)


def random_parameters(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    T, C, N = shape
    mean = torch.randn(T, C, N, generator=generator, dtype=torch.float64)
    matrix = 0.1 * torch.randn(T, C, N, N, generator=generator, dtype=torch.float64)
    return mean, matrix


def sampled_bound(problem: Problem, mean: Tensor, Sigma: Tensor, n: int = 400_000) -> Tensor:
    """The bound with the expectation by Monte Carlo and the divergence by torch.distributions."""
    generator = torch.Generator().manual_seed(2)
    T, C, N = mean.shape
    std = Sigma.diagonal(dim1=-2, dim2=-1).sqrt()
    f = mean + std * torch.randn(n, T, C, N, generator=generator, dtype=mean.dtype)
    expected = (torch.log_softmax(f, 2) * problem.Y).sum((2, 3)).mean(0)
    normal = torch.distributions.MultivariateNormal
    q = normal(mean, Sigma)
    p = normal(torch.zeros_like(mean), problem.K.expand(T, C, N, N))
    return expected - torch.distributions.kl_divergence(q, p).sum(-1)


# --- the bound and its gradients ---


def test_both_forms_evaluate_the_bound() -> None:
    K, y = random_task(2, 2, 3)
    problem = problem_of(K, y, 2)
    mean, factor = random_parameters((2, 2, 3))
    R = torch.linalg.cholesky(K)  # the bound is the same for any root of K
    A = factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1).exp())
    m, Sigma = (R @ mean[..., None])[..., 0], R @ A @ A.mT @ R.mT
    whitened = evaluate_whitened(problem, R, mean, factor)
    plain = evaluate_plain(problem, torch.linalg.cholesky(K), m, Sigma)
    torch.testing.assert_close(plain.elbo, sampled_bound(problem, m, Sigma), rtol=0, atol=0.02)
    torch.testing.assert_close(whitened.elbo, plain.elbo, rtol=0, atol=1e-6)


@pytest.mark.parametrize("per_class", [False, True])
def test_plain_gradient_is_the_derivative_of_the_bound(per_class: bool) -> None:
    K, y = random_task(2, 3, 4, per_class=per_class)
    problem, K_chol = problem_of(K, y, 3), torch.linalg.cholesky(K)
    mean, noise = random_parameters((2, 3, 4))
    Sigma = 0.5 * K + noise @ noise.mT

    def bound(mean: Tensor, Sigma: Tensor) -> Tensor:
        return evaluate_plain(problem, K_chol, mean, 0.5 * (Sigma + Sigma.mT)).elbo.sum()

    state = evaluate_plain(problem, K_chol, mean, Sigma)
    grad_mean, grad_Sigma = jacobian(bound, (mean, Sigma))
    torch.testing.assert_close(state.grad_mean, grad_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state.grad_matrix, grad_Sigma, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("task", [random_task(2, 3, 6), random_task(2, 3, 6, per_class=True), singular_task()])
def test_whitened_gradient_is_the_derivative_of_the_bound(task: tuple[Tensor, Tensor]) -> None:
    problem = problem_of(*task, 3)
    eigenvalues, U = torch.linalg.eigh(problem.K)
    R = U * eigenvalues.clamp(min=0).sqrt()[..., None, :] @ U.mT
    parameters = random_parameters((2, 3, 6))

    def bound(mean: Tensor, factor: Tensor) -> Tensor:
        return evaluate_whitened(problem, R, mean, factor).elbo.sum()

    state = evaluate_whitened(problem, R, *parameters)
    assert state.elbo.isfinite().all()
    grad_mean, grad_factor = jacobian(bound, parameters)
    torch.testing.assert_close(state.grad_mean, grad_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state.grad_matrix, grad_factor, rtol=1e-6, atol=1e-6)
    # and along the gradient, by finite differences
    h = torch.full((2,), 1e-5, dtype=torch.float64)
    rise = evaluate_whitened(problem, R, *state.step(h)).elbo - evaluate_whitened(problem, R, *state.step(-h)).elbo
    torch.testing.assert_close(rise / (2 * h), state.slope, rtol=1e-5, atol=1e-5)


# --- the cholesky form ---


@pytest.mark.parametrize("scale", [0.7, 3.0, 20.0])
def test_cholesky_form_climbs_to_the_optimum_of_mirror_descent(scale: float) -> None:
    K, y = random_task(scale=scale)
    posterior, best = mirror_descent(K, y, n_way=3, max_steps=100, tol=1e-9)
    q, info = gradient_descent(K, y, n_way=3, max_steps=150, step_size=1.0, form="cholesky")
    gap = best.elbo[:, -1:] - info.elbo
    assert (info.elbo.diff() >= 0).all()
    assert (gap > -1e-6).all()
    assert (gap[:, 1] < gap[:, 0]).all()
    assert (gap[:, -1] < 1e-5).all()
    torch.testing.assert_close(q.mean, posterior.mean, rtol=0, atol=0.01)
    torch.testing.assert_close(q.covariance, covariance(K, posterior), rtol=0, atol=0.01)
    assert not info.failed.any()


@pytest.mark.parametrize("step_size", [1e-3, 1e3])
def test_cholesky_form_finds_its_step_from_any_first_one(step_size: float) -> None:
    K, y = random_task()
    _, best = mirror_descent(K, y, n_way=3)
    _, info = gradient_descent(K, y, n_way=3, max_steps=40, step_size=step_size, form="cholesky")
    assert (info.elbo.diff() >= 0).all()
    assert (best.elbo[:, -1] - info.elbo[:, -1] < 1e-3).all()
    assert (info.n_evaluations > info.n_steps).all()


def test_cholesky_form_accepts_a_singular_kernel() -> None:
    K, y = singular_task()
    posterior, best = mirror_descent(K, y, n_way=3, max_steps=100, tol=1e-9)
    q, info = gradient_descent(K, y, n_way=3, max_steps=150, step_size=1.0, form="cholesky")
    assert (best.elbo[:, -1] - info.elbo[:, -1]).abs().max() < 1e-5
    torch.testing.assert_close(q.mean, posterior.mean, rtol=0, atol=0.01)


def test_cholesky_form_stops_by_itself_and_repeats_its_last_bound() -> None:
    K, y = random_task()
    _, info = gradient_descent(K, y, n_way=3, max_steps=400, step_size=1.0, form="cholesky")
    assert (info.n_steps < 400).all()
    assert info.elbo.shape == (3, 401)
    for task, n in enumerate(info.n_steps.tolist()):
        assert (info.elbo[task, n:] == info.elbo[task, -1]).all()


# --- the plain form ---


def test_plain_form_makes_the_updates_of_the_paper() -> None:
    K, y = random_task(1, 2, 2, scale=2.0)
    rho, n_steps = 0.05, 3
    # the same in numpy: explicit inverses, expectations by a tensor product of Gauss-Hermite nodes
    z, w = np.polynomial.hermite_e.hermegauss(30)
    w = w / w.sum()
    prior, one_hot = K[0, 0].numpy(), np.eye(2)[y[0].numpy()].T
    m, S = np.zeros((2, 2)), np.stack([prior, prior])
    for _ in range(n_steps):
        p, p_sq = np.zeros((2, 2)), np.zeros((2, 2))
        std = np.sqrt(S.diagonal(axis1=1, axis2=2))
        for (z0, w0), (z1, w1) in itertools.product(zip(z, w, strict=True), repeat=2):
            f = m + std * np.array([[z0], [z1]])
            soft = np.exp(f - f.max(0)) / np.exp(f - f.max(0)).sum(0)
            p, p_sq = p + w0 * w1 * soft, p_sq + w0 * w1 * soft**2
        g_m, g_v = one_hot - p, -0.5 * (p - p_sq)
        m, S = (
            m + rho * (g_m - m @ np.linalg.inv(prior)),
            S + rho * (np.stack([np.diag(g) for g in g_v]) + np.linalg.inv(S) / 2 - np.linalg.inv(prior) / 2),
        )
    q, info = gradient_descent(K, y, n_way=2, max_steps=n_steps, step_size=rho)
    torch.testing.assert_close(q.mean[0], torch.as_tensor(m), rtol=0, atol=1e-6)
    torch.testing.assert_close(q.covariance[0], torch.as_tensor(S), rtol=0, atol=1e-6)
    assert info.n_steps.tolist() == [n_steps]
    assert info.n_evaluations.tolist() == [n_steps + 1]


def test_plain_form_with_a_small_step_climbs() -> None:
    K, y = random_task()
    _, info = gradient_descent(K, y, n_way=3, max_steps=30, step_size=0.02)
    assert (info.elbo.diff() > 0).all()
    assert not info.failed.any()


def test_plain_form_reports_tasks_that_leave_the_feasible_set() -> None:
    K, y = random_task()
    K = torch.cat([0.02 * K[:1], K[1:2], 100 * K[2:]])  # a smaller prior allows smaller steps only
    q, info = gradient_descent(K, y, n_way=3, max_steps=20, step_size=0.5)
    assert info.failed.tolist() == [True, False, False]
    assert info.n_steps[0] < 20
    assert info.n_steps[1:].tolist() == [20, 20]
    assert info.elbo.isfinite().all()
    assert q.mean.isfinite().all()
    assert (torch.linalg.eigvalsh(q.covariance) > 0).all()
    assert torch.equal(q.covariance, q.covariance.mT)
    assert (info.elbo[0, int(info.n_steps[0]) :] == info.elbo[0, -1]).all()


@pytest.mark.parametrize("step_size", [100.0, 1e300])
def test_plain_form_survives_any_step_size(step_size: float) -> None:
    K, y = random_task()
    q, info = gradient_descent(K, y, n_way=3, max_steps=5, step_size=step_size)
    assert info.failed.all()
    assert info.elbo.isfinite().all()
    assert q.mean.isfinite().all()
    assert q.covariance.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_form_refuses_a_singular_kernel(dtype: torch.dtype) -> None:
    regular, y = random_task(2, 3, 6)
    K = torch.cat([regular[:1], singular_task()[0][:1]]).to(dtype)
    with pytest.raises(InvalidInputError, match=r"positive definite, since form='plain'.*in task 1"):
        gradient_descent(K, y, n_way=3, max_steps=1, step_size=0.1)


# --- both forms ---


@both_forms
@pytest.mark.parametrize("per_class", [False, True])
def test_batch_equals_loop(form: str, per_class: bool) -> None:
    K, y = random_task(per_class=per_class)
    options = {"n_way": 3, "max_steps": 8, "step_size": 0.05, "form": form}
    q, info = gradient_descent(K, y, **options)
    for t in range(3):
        q_t, info_t = gradient_descent(K[t : t + 1], y[t : t + 1], **options)
        torch.testing.assert_close(q.mean[t : t + 1], q_t.mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(q.covariance[t : t + 1], q_t.covariance, rtol=0, atol=1e-6)
        torch.testing.assert_close(info.elbo[t : t + 1], info_t.elbo, rtol=0, atol=1e-6)
        assert torch.equal(info.n_evaluations[t : t + 1], info_t.n_evaluations)


@both_forms
def test_bound_starts_at_the_prior(form: str) -> None:
    K, y = random_task()
    _, mirror = mirror_descent(K, y, n_way=3, max_steps=1, step_size=1.0)
    _, info = gradient_descent(K, y, n_way=3, max_steps=1, step_size=0.01, form=form)
    torch.testing.assert_close(info.elbo[:, 0], mirror.elbo[:, 0], rtol=0, atol=1e-6)


@both_forms
def test_padded_points_and_classes_change_nothing(form: str) -> None:
    K, y = random_task(2, 2, 4)
    padded = torch.eye(6, dtype=torch.float64).repeat(2, 1, 1, 1)
    padded[..., :4, :4] = K
    options = {"max_steps": 10, "step_size": 0.05, "form": form}
    q, info = gradient_descent(K, y, n_way=2, **options)
    q_padded, info_padded = gradient_descent(
        padded,
        torch.cat([y, torch.full((2, 2), 7)], 1),
        n_way=3,
        weight=torch.tensor([[1.0, 1, 1, 1, 0, 0]], dtype=torch.float64).expand(2, 6),
        class_mask=torch.tensor([[True, True, False]]).expand(2, 3),
        **options,
    )
    torch.testing.assert_close(info_padded.elbo, info.elbo, rtol=0, atol=1e-6)
    torch.testing.assert_close(q_padded.mean[:, :2, :4], q.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(q_padded.covariance[:, :2, :4, :4], q.covariance, rtol=0, atol=1e-6)


@both_forms
def test_single_precision_follows_double(form: str) -> None:
    K, y = random_task()
    options = {"n_way": 3, "max_steps": 10, "step_size": 0.05, "form": form}
    _, double = gradient_descent(K, y, **options)
    q, single = gradient_descent(K.float(), y, **options)
    assert q.mean.dtype == q.covariance.dtype == single.elbo.dtype == torch.float32
    torch.testing.assert_close(single.elbo.double(), double.elbo, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0, "step_size": 0.1}, "Expected `max_steps` to be positive and finite, but got 0"),
        ({"max_steps": 1, "step_size": 0.0}, "Expected `step_size` to be positive and finite, but got 0.0"),
        (
            {"max_steps": 1, "step_size": float("nan")},
            "Expected `step_size` to be positive and finite, but got nan",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        gradient_descent(*random_task(), n_way=3, **options)


def test_cholesky_form_refuses_an_indefinite_matrix() -> None:
    K = torch.tensor([[1.0, 2.0], [2.0, 1.0]])[None, None]
    with pytest.raises(InvalidInputError, match="positive semi-definite, but task 0 has a negative eigenvalue"):
        gradient_descent(K, torch.tensor([[0, 1]]), n_way=2, max_steps=1, step_size=0.1, form="cholesky")
