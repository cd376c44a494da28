"""Expectations of softmax and logistic-softmax under independent Gaussians, by deterministic quadrature.

`moments` has the functions to call; `integrals` writes each expectation and its derivatives as integrals over one
variable `u`; `quadrature` evaluates their integrands. `logistic` has the logistic-softmax, with integrals of its own.
"""

from mirrorshot.softmax.moments import (
    SoftmaxHessian,
    SoftmaxMoments,
    log_predictive,
    softmax_hessian,
    softmax_moments,
    softmax_moments_error,
)

__all__ = [
    "SoftmaxHessian",
    "SoftmaxMoments",
    "log_predictive",
    "softmax_hessian",
    "softmax_moments",
    "softmax_moments_error",
]
