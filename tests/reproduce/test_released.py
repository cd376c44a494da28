import torch
from torch.testing import assert_close

from mirrorshot.inference import mirror_descent
from mirrorshot.likelihoods import softmax_moments
from mirrorshot.reproduce.released import released_descent


def cosine_tasks(n_tasks, n_way, n_shot, scale):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n_tasks, n_way, 1, 64, generator=g, dtype=torch.float64)
    x = x + torch.randn(n_tasks, n_way, n_shot, 64, generator=g, dtype=torch.float64)
    z = torch.nn.functional.normalize(x.flatten(1, 2), dim=-1)
    return scale * (z @ z.mT)[:, None], torch.arange(n_way).repeat_interleave(n_shot).expand(n_tasks, -1)


def test_the_released_formula_converges_to_a_lower_bound():
    K, y = cosine_tasks(3, 5, 5, 3.0)
    options = {"n_way": 5, "max_steps": 60, "step_size": 0.5}
    _, paper = mirror_descent(K, y, **options)
    posterior, released = released_descent(K, y, **options)
    assert_close(released.elbo[:, -1], released.elbo[:, -2], rtol=0, atol=1e-6)  # at its fixed point
    assert (released.elbo[:, -1] < paper.elbo[:, -1] - 0.5).all()
    # m = (K^-1 + W)^-1 (1 + W) g_m, that is b = (1 + w) g_m
    moments = softmax_moments(posterior.mean.mT, posterior.var.mT)
    g_m = torch.nn.functional.one_hot(y, 5).mT - moments.prob.mT
    shift, w = posterior.sites
    assert_close(shift, (1 + w) * g_m, rtol=0, atol=1e-5)


def test_the_released_formula_is_the_papers_for_an_identity_kernel():
    K, y = torch.eye(6, dtype=torch.float64)[None, None], torch.tensor([[0, 1, 2, 0, 1, 2]])
    options = {"n_way": 3, "max_steps": 60, "step_size": 0.5}
    assert_close(released_descent(K, y, **options)[0].mean, mirror_descent(K, y, **options)[0].mean)
