"""Expectations of softmax and logistic-softmax under independent Gaussians, by deterministic quadrature.

- `moments`: the public functions, for NumPy arrays and torch tensors.
- `integrals`: each expectation and its derivatives as integrals over one variable `u`.
- `quadrature`: grids of `u` and the integrands on them.
- `native`: the same in C++, used on a CPU if it was compiled.
- `autograd`: gradients for torch.
- `logistic`: the logistic-softmax, with integrals of its own.
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
