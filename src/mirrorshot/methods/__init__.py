"""Few-shot methods under one contract: `loss` on training tasks, `predict` on new ones.

`METHODS` holds them by name; a new method is one file and one line here.
"""

import inspect
from typing import Any

from mirrorshot.backbones import Backbone
from mirrorshot.methods.base import FewShotMethod, PretrainedMethod
from mirrorshot.methods.gd_gp import GradientGP
from mirrorshot.methods.mirror_gp import MirrorGP
from mirrorshot.methods.protonet import ProtoNet
from mirrorshot.types import InvalidInputError

__all__ = [
    "METHODS", "make_method", "method_options",
    "FewShotMethod", "PretrainedMethod",
    "GradientGP", "MirrorGP", "ProtoNet",
]  # fmt: skip

METHODS: dict[str, type[FewShotMethod]] = {
    "mirror_gp": MirrorGP,
    "gd_gp": GradientGP,
    "protonet": ProtoNet,
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
    unknown = sorted(set(options) - set(method_options(name)))
    if unknown:
        raise InvalidInputError(
            f"Expected options of {name!r} to be among {', '.join(method_options(name)) or 'none'}, "
            f"but got {', '.join(unknown)}."
        )
    return METHODS[name](backbone, **options)


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
