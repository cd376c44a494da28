"""Expectations of softmax and logistic-softmax under Gaussians, by deterministic quadrature."""

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
