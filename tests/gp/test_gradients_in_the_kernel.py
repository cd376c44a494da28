"""Gradients of bounds and predictions in the kernel, against finite differences."""

import ast
import math
from pathlib import Path

import numpy as np
import torch
from torch.testing import assert_close

import mirrorshot
from mirrorshot.gp import elbo, mirror_descent
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.softmax.moments import softmax_moments

PRECISE = {"max_steps": 200, "tol": 1e-12}
PARAMETERS = torch.tensor([math.log(5.0), math.log(0.8)], dtype=torch.float64)  # log scale, log length-scale


def kernel_blocks(log_scale, log_length, x, n):
    """RBF covariances of the first n points with themselves and with the rest."""
    square = (x[:, None] - x[None]).square().sum(-1)
    K = torch.exp(log_scale - 0.5 * square * torch.exp(-2 * log_length))
    return K[None, None, :n, :n], K[None, None, :n, n:], K.diagonal()[None, None, n:]


def gradient_case():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(9, 2, generator=g, dtype=torch.float64)
    return x, torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.tensor([[0, 1, 2]])


def predictive_loss(parameters, **options):
    x, y, y_new = gradient_case()
    K, K_cross, prior_var = kernel_blocks(parameters[0], parameters[1], x, 6)
    posterior, _ = mirror_descent(K, y, n_way=3, max_std=3.5, **options)
    mean, var = predict_latent(posterior, K_cross, prior_var)
    prob = softmax_moments(mean.mT, var.mT, max_std=3.5).prob
    return -prob.gather(-1, y_new[..., None]).log().sum()


def optimal_bound(parameters, **options):
    x, y, _ = gradient_case()
    K, _, _ = kernel_blocks(parameters[0], parameters[1], x, 6)
    posterior, _ = mirror_descent(K, y, n_way=3, max_std=3.5, **options)
    return elbo(K, y, posterior).sum()


def finite_difference(function, parameters, eps=1e-3):
    out = []
    for i in range(len(parameters)):
        e = torch.zeros_like(parameters)
        e[i] = eps
        # fourth order
        values = [function(parameters + k * e).item() for k in (-2, -1, 1, 2)]
        out.append(np.dot(values, [1, -8, 8, -1]) / (12 * eps))
    return torch.tensor(out, dtype=torch.float64)


def derivative(function, parameters):
    parameters = parameters.clone().requires_grad_()
    return torch.autograd.grad(function(parameters), parameters)[0]


def test_the_gradient_of_the_optimal_bound_matches_finite_differences():
    def bound(p):
        return optimal_bound(p, **PRECISE)

    expected = finite_difference(bound, PARAMETERS)
    assert_close(derivative(bound, PARAMETERS), expected, rtol=1e-5, atol=1e-6)


def test_a_predictive_loss_needs_more_than_the_envelope():
    def loss(p):
        return predictive_loss(p, **PRECISE)

    assert (derivative(loss, PARAMETERS) - finite_difference(loss, PARAMETERS)).abs().max() > 1e-2


def test_the_unrolled_gradient_matches_finite_differences_of_the_steps_taken():
    options = {"gradient": "unroll", "step_size": 0.7, "max_steps": 3}
    for function in (predictive_loss, optimal_bound):
        got = derivative(lambda p, f=function: f(p, **options), PARAMETERS)
        expected = finite_difference(lambda p, f=function: f(p, **options), PARAMETERS)
        assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_unrolling_many_steps_approaches_the_gradient_of_the_optimum():
    unrolled = derivative(lambda p: predictive_loss(p, gradient="unroll", step_size=0.7, max_steps=40), PARAMETERS)
    expected = finite_difference(lambda p: predictive_loss(p, **PRECISE), PARAMETERS)
    assert_close(unrolled, expected, rtol=1e-4, atol=1e-5)


def test_no_graph_is_kept_where_none_is_wanted(few_shot_tasks):
    K, y = few_shot_tasks(1, 3, 2, 4.0)
    assert not mirror_descent(K, y, n_way=3)[0].mean.requires_grad
    with torch.no_grad():
        posterior, _ = mirror_descent(K.requires_grad_(), y, n_way=3)
    assert not posterior.mean.requires_grad


def functions_with_a_written_backward():
    """Every `autograd.Function` of the package."""
    root = Path(mirrorshot.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith(".Function") for base in node.bases):
                yield path, node


def test_every_written_backward_is_differentiable_once():
    found = list(functions_with_a_written_backward())
    assert len(found) >= 3
    for path, node in found:
        (backward,) = (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "backward")
        marks = [ast.unparse(mark) for mark in backward.decorator_list]
        assert marks == ["staticmethod", "once_differentiable"], f"{path.name}: {node.name}"
