"""Few-shot methods under one contract: `loss` on training tasks, `predict` on new ones.

`METHODS` holds them by name; a new method is one file and one line here.
"""

import inspect
from typing import Any

from mirrorshot.backbones import Backbone
from mirrorshot.methods.abml import ABML
from mirrorshot.methods.base import FewShotMethod, PretrainedMethod
from mirrorshot.methods.baseline_pp import BaselinePP
from mirrorshot.methods.bayesian_maml import BayesianMAML, ChaserBayesianMAML
from mirrorshot.methods.dkt import DKT
from mirrorshot.methods.feature_transfer import FeatureTransfer
from mirrorshot.methods.gd_gp import GradientGP
from mirrorshot.methods.logistic_head import LogisticHead
from mirrorshot.methods.logistic_softmax_gp import LogisticSoftmaxGP
from mirrorshot.methods.maml import MAML
from mirrorshot.methods.matchingnet import MatchingNet
from mirrorshot.methods.mirror_gp import MirrorGP
from mirrorshot.methods.ncm_cosine import NCMCosine
from mirrorshot.methods.ove_gp import OneVsEachGP
from mirrorshot.methods.protonet import ProtoNet
from mirrorshot.methods.relationnet import RelationNet
from mirrorshot.methods.simpleshot import SimpleShot
from mirrorshot.types import InvalidInputError

__all__ = [
    "METHODS", "make_method", "method_options",
    "FewShotMethod", "PretrainedMethod",
    "GradientGP", "MirrorGP", "ProtoNet",
    "MatchingNet",
    "FeatureTransfer",
    "RelationNet",
    "BaselinePP",
    "ABML", "BayesianMAML", "ChaserBayesianMAML",
    "DKT",
    "SimpleShot",
    "NCMCosine",
    "MAML",
    "LogisticHead",
    "LogisticSoftmaxGP",
    "OneVsEachGP",
]  # fmt: skip

METHODS: dict[str, type[FewShotMethod]] = {
    "mirror_gp": MirrorGP,
    "gd_gp": GradientGP,
    "protonet": ProtoNet,
    "matchingnet": MatchingNet,
    "feature_transfer": FeatureTransfer,
    "relationnet": RelationNet,
    "baseline_pp": BaselinePP,
    "bayesian_maml": BayesianMAML,
    "bayesian_maml_chaser": ChaserBayesianMAML,
    "abml": ABML,
    "dkt": DKT,
    "simpleshot": SimpleShot,
    "ncm_cosine": NCMCosine,
    "maml": MAML,
    "logistic_head": LogisticHead,
    "logistic_softmax_gp": LogisticSoftmaxGP,
    "ove_gp": OneVsEachGP,
}


def make_method(name: str, backbone: Backbone, **options: Any) -> FewShotMethod:
    """Build the method of that name.

    Args:
        name: a key of `METHODS`.
        backbone: from items to features.
        **options: arguments of its class.

    Example:
        >>> from mirrorshot.backbones import make_backbone
        >>> make_method("protonet", make_backbone("identity", in_features=8)).backbone.out_features
        8
    """
    if name not in METHODS:
        raise InvalidInputError(f"Expected `name` to be one of {', '.join(METHODS)}, but got {name!r}.")
    known = method_options(name)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InvalidInputError(
            f"Expected options of {name!r} to be among {', '.join(known) or 'none'}, but got {', '.join(unknown)}."
        )
    for option, value in options.items():
        _check_type(name, option, value, known[option])
    return METHODS[name](backbone, **options)


def _check_type(name: str, option: str, value: Any, default: Any) -> None:
    """Refuse a value of another type than the default has, if that is a number or a truth value."""
    allowed: tuple[type, ...] | None = {bool: (bool,), int: (int,), float: (int, float)}.get(type(default))
    if allowed is not None and (not isinstance(value, allowed) or isinstance(value, bool) != (allowed == (bool,))):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise InvalidInputError(f"Expected option {option!r} of {name!r} to be {kind}, but got {value!r}.")


def method_options(name: str) -> dict[str, Any]:
    """Options of a method with their defaults.

    Example:
        >>> method_options("protonet")
        {}
        >>> method_options("mirror_gp")["n_steps"]
        3
    """
    options: dict[str, Any] = {}
    for cls in reversed(METHODS[name].__mro__):
        if issubclass(cls, FewShotMethod) and "__init__" in vars(cls):
            for parameter in inspect.signature(cls.__init__).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY:
                    options[parameter.name] = parameter.default
    return options
