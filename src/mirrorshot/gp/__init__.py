"""Gaussian-process classification: inference of a posterior from kernel matrices and labels."""

from typing import TYPE_CHECKING, Any

from mirrorshot.files.lazy import need
from mirrorshot.gp.mirror import mirror_descent
from mirrorshot.gp.newton import NewtonInfo, newton_solve
from mirrorshot.gp.objective import elbo
from mirrorshot.gp.quasi_newton import MirrorInfo
from mirrorshot.gp.starts import AmortisedSites, amortise

if TYPE_CHECKING:
    from mirrorshot.gp.gradient import FullGaussian, GradientInfo, gradient_descent

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


def __getattr__(name: str) -> Any:
    if name in ("FullGaussian", "GradientInfo", "gradient_descent"):
        return getattr(need("mirrorshot.gp.gradient"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
