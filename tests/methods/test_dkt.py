"""DKT: its loss against GPyTorch, its predictions against scikit-learn, its normalisation against torch."""

import gpytorch
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct
from torch import nn
from torch.testing import assert_close

from mirrorshot.methods.dkt import DKT, masked_batch_norm
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import InvalidInputError

D = 8


def make(**options):
    return DKT(make_backbone("identity", in_features=D), **options).double()


def signs(y):
    return 2 * nn.functional.one_hot(y, 5).double() - 1


class ExactGP(gpytorch.models.ExactGP):
    def __init__(self, x, y, scale):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.LinearKernel()
        self.covar_module.variance, self.likelihood.noise = scale, 0.1

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_the_loss_is_that_of_exact_gpytorch_models(drawn):
    tasks, query_y = drawn
    method = make(kernel_options={"outputscale": 2.0})
    with torch.no_grad():
        method.mean.fill_(-0.3)
    x = nn.functional.normalize(torch.cat([tasks.support_x, tasks.query_x], 1), dim=-1)
    y = signs(torch.cat([tasks.support_y, query_y], 1))
    for t in range(3):
        losses = []
        for c in range(5):
            model = ExactGP(x[t], y[t, :, c], torch.tensor(2.0)).double()
            model.mean_module.constant = torch.tensor(-0.3)
            mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model.train())
            losses.append(-mll(model(x[t]), y[t, :, c]))
        assert method.loss(tasks, query_y)[t].item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)


def test_probabilities_are_the_softmax_of_the_posterior_means(drawn):
    tasks, _ = drawn
    method = make(kernel_options={"outputscale": 1.0})
    z, new = (nn.functional.normalize(x, dim=-1) for x in (tasks.support_x, tasks.query_x))
    for t in range(3):
        gp = GaussianProcessRegressor(DotProduct(0.0, "fixed"), alpha=0.1)
        means = torch.as_tensor(gp.fit(z[t].numpy(), signs(tasks.support_y[t]).numpy()).predict(new[t].numpy()))
        assert_close(method.predict(tasks)[t], torch.log_softmax(means, -1), rtol=0, atol=1e-7)


def test_equal_means_per_class_are_one_mean(drawn):
    shared, own = make(), make(per_class_mean=True)
    with torch.no_grad():
        shared.mean.fill_(0.2)
        own.mean.fill_(0.2)
    assert own.mean.shape == (5,)
    assert_close(shared.loss(*drawn), own.loss(*drawn))
    assert_close(shared.predict(drawn[0]), own.predict(drawn[0]))


def test_tasks_of_another_number_of_classes_are_refused_where_each_has_its_mean(drawn):
    with pytest.raises(InvalidInputError, match=r"tasks of 3 classes.*but got 5. Use per_class_mean=False"):
        make(per_class_mean=True, n_way=3).predict(drawn[0])


def test_a_noise_that_is_not_positive_is_refused():
    with pytest.raises(InvalidInputError, match="`noise` to be positive, but got 0"):
        make(noise=0.0)


def test_tuning_sharpens_the_predictions_and_keeps_their_order(drawn):
    method = make()
    before = method.predict(drawn[0])
    method.tune(*drawn)
    after = method.predict(drawn[0])
    assert torch.equal(before.argmax(-1), after.argmax(-1))
    assert after.amax(-1).mean() > before.amax(-1).mean() + 0.5


def test_without_padding_normalisation_is_that_of_torch():
    z = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(0)) * 2 + 1
    ours, theirs = nn.BatchNorm1d(D), nn.BatchNorm1d(D)
    for norm in (ours, theirs):
        nn.init.constant_(norm.weight, 1.5)
        nn.init.constant_(norm.bias, -0.5)
    for _ in range(2):
        assert_close(masked_batch_norm(ours, z, torch.ones(3, 7)), theirs(z.reshape(-1, D)).reshape(z.shape))
    assert_close(ours.running_mean, theirs.running_mean)
    assert_close(ours.running_var, theirs.running_var)
    ours.eval()
    theirs.eval()
    assert_close(masked_batch_norm(ours, z, torch.ones(3, 7)), theirs(z.reshape(-1, D)).reshape(z.shape))


def test_normalised_features_are_centred_in_training_and_padding_does_not_move_them(drawn):
    tasks, query_y = drawn
    method = make(batch_norm=True)
    support, query = method.features(tasks)
    assert torch.cat([support, query], 1).mean((0, 1)).abs().max() < 1e-9
    padded = tasks._replace(
        support_x=torch.cat([tasks.support_x, tasks.support_x.new_full((3, 2, D), 9.0)], 1),
        support_y=torch.cat([tasks.support_y, tasks.support_y.new_zeros(3, 2)], 1),
        support_weight=torch.cat([tasks.support_weight, tasks.support_weight.new_zeros(3, 2)], 1),
    )
    assert_close(method.loss(padded, query_y), method.loss(tasks, query_y))


def test_normalisation_moves_its_statistics_in_training_only_and_learns(drawn):
    method = make(batch_norm=True).eval()
    start = method.norm.running_mean.clone()
    method.predict(drawn[0])
    assert torch.equal(method.norm.running_mean, start)
    method.train().loss(*drawn).sum().backward()
    assert not torch.equal(method.norm.running_mean, start)
    assert method.norm.weight.grad.abs().max() > 0
    assert any(p is method.norm.weight for p in method.parameter_groups()["network"])
    assert any(p is method.mean for p in method.parameter_groups()["kernel"])
