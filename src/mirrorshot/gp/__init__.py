"""Gaussian-process classification: from kernel matrices and labels to a posterior."""

from mirrorshot.gp.gradient import FullGaussian, GradientInfo, gradient_descent
from mirrorshot.gp.mirror import mirror_descent
from mirrorshot.gp.newton import NewtonInfo, newton_solve
from mirrorshot.gp.objective import elbo
from mirrorshot.gp.quasi_newton import MirrorInfo
from mirrorshot.gp.starts import AmortisedSites, amortise

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
