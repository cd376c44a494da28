"""Expectations of softmax and logistic-softmax under independent Gaussians, by deterministic quadrature.

`moments` has the public functions, for NumPy arrays and torch tensors. `integrals` writes each expectation and its
derivatives as integrals over one variable `u`, and `quadrature` evaluates the integrands. `native` is the same in C++,
used on a CPU if it was compiled; `autograd` adds gradients for torch. `logistic` has the logistic-softmax.
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
