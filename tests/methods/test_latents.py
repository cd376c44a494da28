import pytest
import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import METHODS, make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.softmax.moments import log_predictive

WITH_LATENTS = ("mirror_gp", "gd_gp")


@pytest.fixture(scope="module")
def tasks():
    generator = torch.Generator().manual_seed(0)
    source = ClassSource.from_arrays(torch.randn(60, 8, generator=generator), torch.arange(60) % 6)
    return EpisodeSampler(source, n_way=4, n_shot=2, n_query=3, seed=0).draw(3)[0]


@pytest.mark.parametrize("name", WITH_LATENTS)
def test_latents_give_the_predictions_before_any_temperature(name, tasks):
    method = make_method(name, make_backbone("identity", in_features=8), temperature=False).eval()
    mean, var = method.predict_latent(tasks)
    assert mean.shape == var.shape == (3, 12, 4)
    torch.testing.assert_close(log_predictive(mean, var), method.predict(tasks))
    method = make_method(name, make_backbone("identity", in_features=8), temperature=True).eval()
    method.log_temperature.fill_(-1.0)
    torch.testing.assert_close(method.predict_latent(tasks)[0], mean)


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(WITH_LATENTS)))
def test_other_methods_have_no_latents(name):
    from mirrorshot.methods.base import FewShotMethod

    assert METHODS[name].predict_latent is FewShotMethod.predict_latent
