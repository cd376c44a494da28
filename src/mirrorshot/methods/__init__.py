"""Few-shot methods with a common interface: `loss` on training tasks, `predict` on new ones.

To add a method, write one file and register its class in `METHODS`. A method is imported on first use, so names can be
listed and completed without torch.
"""

from __future__ import annotations

import inspect
from collections import UserDict
from typing import TYPE_CHECKING, Any

from mirrorshot.files.lazy import lazy_exports, need
from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:
    from mirrorshot.methods.base import FewShotMethod, PretrainedMethod
    from mirrorshot.networks.backbones import Backbone

__all__ = ["METHODS", "FewShotMethod", "PretrainedMethod", "make_method", "method_options"]


class _Registry(UserDict[str, Any]):
    """Classes by name; an entry may be the path of a class, which is imported on first use."""

    def __getitem__(self, name: str) -> type[FewShotMethod]:
        entry = super().__getitem__(name)
        if isinstance(entry, str):
            module, _, cls = entry.rpartition(".")
            entry = self.data[name] = getattr(need(f"mirrorshot.methods.{module}"), cls)
        found: type[FewShotMethod] = entry
        return found


METHODS = _Registry(
    mirror_gp="mirror_gp.MirrorGP",
    gd_gp="gd_gp.GradientGP",
    protonet="protonet.ProtoNet",
    matchingnet="matchingnet.MatchingNet",
    feature_transfer="feature_transfer.FeatureTransfer",
    relationnet="relationnet.RelationNet",
    baseline_pp="baseline_pp.BaselinePP",
    bayesian_maml="bayesian_maml.BayesianMAML",
    bayesian_maml_chaser="bayesian_maml.ChaserBayesianMAML",
    abml="abml.ABML",
    dkt="dkt.DKT",
    simpleshot="simpleshot.SimpleShot",
    ncm_cosine="ncm_cosine.NCMCosine",
    maml="maml.MAML",
    logistic_head="logistic_head.LogisticHead",
    logistic_softmax_gp="logistic_softmax_gp.LogisticSoftmaxGP",
    ove_gp="ove_gp.OneVsEachGP",
)
"""Methods by name."""


__getattr__ = lazy_exports(__name__, {"base": "FewShotMethod PretrainedMethod"})


def make_method(name: str, backbone: Backbone, **options: Any) -> FewShotMethod:
    """Build a method of `METHODS` by name, with options of its class (see `method_options`).

    Example:
        >>> import torch
        >>> from mirrorshot.data import ClassSource, EpisodeSampler
        >>> from mirrorshot.networks import make_backbone
        >>> source = ClassSource.from_arrays(torch.randn(60, 8), torch.arange(60) % 6)
        >>> tasks, query_y = EpisodeSampler(source, n_way=5, n_shot=1, n_query=3, seed=0).draw(2)
        >>> method = make_method("mirror_gp", make_backbone("identity", in_features=8), n_steps=2)
        >>> method.loss(tasks, query_y).shape, method.predict(tasks).shape
        (torch.Size([2]), torch.Size([2, 15, 5]))
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
    """Raise if the default is a number or a boolean and the value has another type."""
    allowed: tuple[type, ...] | None = {bool: (bool,), int: (int,), float: (int, float)}.get(type(default))
    if allowed is not None and (not isinstance(value, allowed) or isinstance(value, bool) != (allowed == (bool,))):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise InvalidInputError(f"Expected option {option!r} of {name!r} to be {kind}, but got {value!r}.")


def method_options(name: str) -> dict[str, Any]:
    """Return the options of a method with their defaults.

    Example:
        >>> method_options("protonet")
        {}
        >>> method_options("mirror_gp")["n_steps"]
        3
    """
    from mirrorshot.methods import base

    classes = [cls for cls in reversed(METHODS[name].__mro__) if issubclass(cls, base.FewShotMethod)]
    parameters = [p for cls in classes for p in inspect.signature(cls.__init__).parameters.values()]
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
