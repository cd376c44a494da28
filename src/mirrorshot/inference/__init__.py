"""Inference methods: from kernel matrices and labels to a posterior."""

from mirrorshot.inference.gradient import FullGaussian, GradientInfo, gradient_descent
from mirrorshot.inference.mirror import mirror_descent
from mirrorshot.inference.newton import NewtonInfo, newton_solve
from mirrorshot.inference.objective import elbo
from mirrorshot.inference.quasi_newton import MirrorInfo
from mirrorshot.inference.starts import AmortisedSites, amortise

__all__ = [
    "AmortisedSites",
    "FullGaussian",
    "GradientInfo",
    "MirrorInfo",
    "NewtonInfo",
    "amortise",
    "elbo",
    "gradient_descent",
    "mirror_descent",
    "newton_solve",
]
