"""Inference methods: from kernel matrices and labels to a posterior."""

from mirrorshot.inference.mirror import MirrorInfo, mirror_descent
from mirrorshot.inference.objective import elbo
from mirrorshot.inference.starts import AmortisedSites

__all__ = ["AmortisedSites", "MirrorInfo", "elbo", "mirror_descent"]
