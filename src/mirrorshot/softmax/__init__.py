"""Expectations of softmax and logistic-softmax under independent Gaussians, by deterministic quadrature.

`moments` has the functions to call, for NumPy arrays and torch tensors; `integrals` writes each expectation and its
derivatives as integrals over one variable `u`; `quadrature` evaluates their integrands. `native` has the same in C++,
which is used on a CPU if it was compiled, and `autograd` what torch needs for gradients. `logistic` has the
logistic-softmax, with integrals of its own.
"""

from mirrorshot.softmax.moments import (
    SoftmaxHessian,
    SoftmaxMoments,
    log_predictive,
    softmax_hessian,
    softmax_moments,
)

__all__ = [
    "SoftmaxHessian",
    "SoftmaxMoments",
    "log_predictive",
    "softmax_hessian",
    "softmax_moments",
]
