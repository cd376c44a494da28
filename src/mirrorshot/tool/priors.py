"""Default prior of a classifier: that of the encoder."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mirrorshot.classifier.prior import Prior, prior_state
from mirrorshot.encoders import Encoder


def with_prior(encoder: Encoder, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return parameters of `FewShotClassifier`, with the encoder's prior unless they set `prior` or another kernel.

    Example:
        >>> from mirrorshot.encoders import make_encoder
        >>> with_prior(make_encoder("glyphs"))["prior"].encoder
        'glyphs'
        >>> with_prior(make_encoder("glyphs"), {"kernel": "rbf"}), with_prior(make_encoder("pixels"))
        ({'kernel': 'rbf'}, {})
    """
    found = dict(parameters or {})
    if "prior" in found or encoder.prior is None or found.get("kernel", "auto") not in ("auto", "cosine"):
        return found
    return {**found, "prior": encoder.prior}


def is_prior_of(encoder: Encoder, prior: Prior) -> bool:
    """Return whether a prior equals that of the encoder."""
    if encoder.prior is None:
        return False
    (arrays, info), (own, own_info) = prior_state(prior), prior_state(encoder.prior)
    return info == own_info and arrays.keys() == own.keys() and all(map(np.array_equal, arrays.values(), own.values()))
