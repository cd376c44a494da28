import numpy as np
import pytest

from mirrorshot.gp import visits
from mirrorshot.gp.alternating import alternate
from mirrorshot.gp.visits import Expectations, coupling, newton_step, visit
from mirrorshot.gp.weight_space import Task, condition_on, features_of


def make_task(n_way, n_shot, n_features, scale=10.0):
    x = np.random.default_rng(0).normal(size=(n_way * n_shot, n_features))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    K = scale * x @ x.T
    return Task(features_of(K), K, np.repeat(np.eye(n_way), n_shot, axis=0), np.ones(len(K)), None, scale**0.5)


@pytest.mark.parametrize("size", [1e-5, 1e-3, 1e-1])
def test_the_proof_holds_against_a_converged_solution(size):
    task, rng = make_task(4, 5, 12), np.random.default_rng(1)
    best = alternate(task)
    u = best.alpha.T @ task.features.phi
    w = best.precision * np.exp(size * rng.normal(size=best.precision.shape))
    u = u + size * rng.normal(size=u.shape)
    conditioned = condition_on(task.features.phi, w)
    found = visit(task, conditioned, u, w, 1).found
    assert 0.0 < best.elbo - found.elbo <= found.gap + 1e-9
    assert np.abs(found.mean - best.mean).max() <= found.error
    assert np.abs(np.sqrt(conditioned.var) - np.sqrt(best.conditioned.var)).max() <= found.error


def test_the_coupling_of_classes_has_the_curvature_of_each():
    rng = np.random.default_rng(0)
    prob = rng.dirichlet(np.ones(6), size=9)
    s = coupling(Expectations(prob, prob * (1.0 - prob), 0.0))
    np.testing.assert_allclose(s * (s.sum(1, keepdims=True) - s), prob * (1.0 - prob), rtol=1e-2)


def test_the_coupling_of_a_certain_class_is_finite():
    curvature = np.array([[1e-17, 1e-300, 0.0]])
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(coupling(Expectations(np.array([[1.0, 1e-300, 0.0]]), curvature, 0.0))).all()


def test_a_newton_step_is_the_solution_of_the_dense_system(monkeypatch):
    monkeypatch.setattr(visits, "CG_STEPS", 400)
    task, rng = make_task(3, 2, 6), np.random.default_rng(4)
    phi, prob = task.features.phi, rng.dirichlet(np.ones(3), size=6)
    now = Expectations(prob, prob * (1.0 - prob) * rng.uniform(0.5, 1.0, (6, 1)), 0.0)
    residual = rng.normal(size=(3, phi.shape[1]))
    s = coupling(now)
    R = phi.shape[1]
    dense = np.eye(3 * R)
    for n in range(6):  # J = diag(c + s s) - s s^T, of the latents of point n
        J = np.diag(now.curvature[n] + s[n] ** 2) - np.outer(s[n], s[n])
        dense += np.kron(J, np.outer(phi[n], phi[n]))
    expected = np.linalg.solve(dense, residual.ravel()).reshape(3, R)
    for precondition in (lambda x: x, condition_on(phi, np.full((6, 3), 0.2)).solve):
        found = newton_step(task, precondition, now, residual, tolerance=1e-13)
        np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("size", [0.0, 1e-200])
def test_a_gradient_of_zero_asks_for_no_step(size):
    task = make_task(3, 2, 6)
    w = np.full((6, 3), 0.2)
    now = Expectations(np.full((6, 3), 1 / 3), w, 0.0)
    residual = np.full((3, task.features.phi.shape[1]), size)
    step = newton_step(task, condition_on(task.features.phi, w).solve, now, residual)
    np.testing.assert_allclose(step, 0.0, atol=1e-190)
