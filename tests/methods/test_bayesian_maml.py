import math

import pytest
import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.methods.bayesian_maml import BayesianMAML, ChaserBayesianMAML, LabelledPoints, svgd_direction
from mirrorshot.networks.backbones import Backbone, make_backbone
from mirrorshot.types import InvalidInputError

D, WAY = 5, 3


@pytest.fixture
def drawn(clouds):
    return EpisodeSampler(clouds(D, 6, spread=0.5), WAY, 2, 4, seed=0).draw(4)


def make(cls=BayesianMAML, **options):
    return cls(make_backbone("identity", in_features=D), n_way=WAY, **options).double()


def energy(W, log_lambda, x, y):
    """Minus the log-density of weights, precision and labels of one task, with torch's distributions."""
    logits = x @ W[:, :-1].T + W[:, -1]
    fit = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    if log_lambda is None:
        return fit - torch.distributions.Normal(0.0, 1.0).log_prob(W).sum()
    prior = torch.distributions.Normal(0.0, torch.exp(-0.5 * log_lambda)).log_prob(W).sum()
    hyper = torch.distributions.Gamma(1.0, 0.1).log_prob(log_lambda.exp())
    return fit - prior - hyper - log_lambda


def autograd_step(W, log_lambda, x, y, step_size):
    """One step of all particles of one task by loops over them, with the particles' coordinates of the method."""
    n_weights = W[0].numel()
    unit = math.sqrt(n_weights / 2)
    theta = torch.cat([W.flatten(1), unit * log_lambda[:, None]], 1)

    def one(vector):
        return energy(vector[:-1].reshape(W[0].shape), vector[-1] / unit, x, y)

    gradients = torch.stack([torch.func.grad(one)(vector) for vector in theta])
    P, distance = len(theta), torch.cdist(theta, theta)
    moved = theta.clone()
    for i in range(P):
        for j in range(P):
            pairs = sorted(float(distance[a, b]) for a in range(P) for b in range(a))
            h = pairs[(len(pairs) - 1) // 2] ** 2 / math.log(P)
            k = math.exp(-(distance[i, j] ** 2) / h)
            moved[i] += step_size / P * (-k * gradients[j] + 2 / h * k * (theta[i] - theta[j]))
    return moved[:, :-1].reshape(W.shape), moved[:, -1] / unit


def test_predictions_are_those_of_loops_over_tasks_and_particles(drawn):
    tasks, _ = drawn
    method = make(n_particles=4, n_steps=3)
    for t in range(4):
        W, log_lambda = method.head.detach(), method.log_lambda.detach()
        for _ in range(3):
            W, log_lambda = autograd_step(W, log_lambda, tasks.support_x[t], tasks.support_y[t], 0.01)
        logits = tasks.query_x[t] @ W[..., :-1].mT + W[:, None, :, -1]
        assert torch.allclose(method.predict(tasks)[t].exp(), logits.softmax(-1).mean(0))


def test_one_particle_descends_the_energy(drawn):
    tasks, _ = drawn
    method = make(n_particles=1, n_steps=20)
    x, y = tasks.support_x[0], tasks.support_y[0]
    W, unit = method.head[0].detach(), math.sqrt(WAY * (D + 1) / 2)
    u, energies = unit * method.log_lambda[0].detach(), []
    for _ in range(20):
        energies.append(float(energy(W, u / unit, x, y)))
        slope = torch.func.grad(lambda w, s: energy(w, s / unit, x, y), (0, 1))(W, u)
        W, u = W - 0.01 * slope[0], u - 0.01 * slope[1]
    assert energies == sorted(energies, reverse=True)
    expected = (tasks.query_x[0] @ W[:, :-1].T + W[:, -1]).log_softmax(-1)
    assert torch.allclose(method.predict(tasks)[0], expected)


def weighted_moments(values, weight):
    mean = (weight * values).sum()
    return mean.item(), (weight * (values - mean) ** 2).sum().sqrt().item()


# few particles are known to be too narrow, the more so for the long tails that a prior of the precision makes
@pytest.mark.parametrize(("cls", "off"), [(ChaserBayesianMAML, 0.15), (BayesianMAML, 0.35)])
def test_many_steps_come_near_the_posterior_of_a_small_logistic_regression(cls, off):
    x = torch.tensor([-2.0, -1.0, -0.5, 0.4, 1.0, 1.5], dtype=torch.float64)
    x, Y = torch.stack([x, torch.ones(6).double()], 1), torch.eye(2).double()[[0, 0, 1, 0, 1, 1]]
    # the posterior of the difference of the logits at x = 2, by weighting draws of the prior
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(200_000, 2, 2, generator=generator, dtype=torch.float64)
    if cls is BayesianMAML:
        W = W / (-10 * torch.rand(200_000, 1, 1, generator=generator, dtype=torch.float64).log()).sqrt()
    weight = ((x @ W.mT).log_softmax(-1) * Y).sum((1, 2)).softmax(0)
    probe = torch.tensor([2.0, 1.0], dtype=torch.float64)
    mean, spread = weighted_moments((W[:, 1] - W[:, 0]) @ probe, weight)

    found = {}
    for n_particles in (10, 200):
        backbone = make_backbone("identity", in_features=1)
        method = cls(backbone, n_way=2, n_particles=n_particles, n_steps=500).double()
        used = torch.ones(1, 2, dtype=torch.bool)
        with torch.no_grad():
            points = LabelledPoints(x[None], Y[None], torch.ones(1, 6).double())
            theta = method.adapt(method._start(used, torch.float64), points, used, 0.5)
        particles = (theta[0, :, 2:4] - theta[0, :, :2]) @ probe
        found[n_particles] = weighted_moments(particles, torch.full_like(particles, 1 / n_particles))
    assert found[200] == (pytest.approx(mean, rel=off), pytest.approx(spread, rel=off))
    assert 0 < found[10][1] < found[200][1] < spread


@pytest.mark.parametrize("name", ["bayesian_maml", "bayesian_maml_chaser"])
def test_the_gradient_in_start_and_features_is_that_of_finite_differences(drawn, name):
    tasks, query_y = drawn
    method = make_method(name, Scaled(), n_way=WAY, n_particles=4, n_steps=3, step_size=0.05).double()
    parameters = dict(method.named_parameters())
    loss = method.loss(tasks, query_y).sum()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    generator = torch.Generator().manual_seed(1)
    fixed = leaders(method, tasks, query_y) if name == "bayesian_maml_chaser" else None
    for gradient, (key, parameter) in zip(gradients, parameters.items(), strict=True):
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        values = []
        for shift in (1e-5, -2e-5):
            with torch.no_grad():
                parameter.add_(direction, alpha=shift)
            if fixed is None:
                values.append(method.loss(tasks, query_y).sum().item())
            else:
                values.append((chasers(method, tasks) - fixed).square().sum().item())
        with torch.no_grad():
            parameter.add_(direction, alpha=1e-5)
        assert (gradient * direction).sum().item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4), key


class Scaled(Backbone):
    """One factor for all features, to have something to differentiate in."""

    def __init__(self):
        super().__init__((D,))
        self.factor = torch.nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        return self.factor * x


def labelled(method, tasks, query_y=None):
    x, y = tasks.support_x, tasks.support_y
    if query_y is not None:
        x, y = torch.cat([x, tasks.query_x], 1), torch.cat([y, query_y], 1)
    x = method.backbone(x).detach()
    ones = torch.ones(*x.shape[:2], dtype=x.dtype)
    return LabelledPoints(torch.cat([x, ones[..., None]], -1), torch.eye(WAY, dtype=x.dtype)[y], ones)


@torch.no_grad()
def chasers(method, tasks):
    used = tasks.class_mask
    return method.adapt(method._start(used, torch.float64), labelled(method, tasks), used, method.step_size)


@torch.no_grad()
def leaders(method, tasks, query_y):
    return method.adapt(chasers(method, tasks), labelled(method, tasks, query_y), tasks.class_mask, 0.005)


def test_the_chaser_loss_is_the_squared_distance_to_the_leader(drawn):
    tasks, query_y = drawn
    method = make(ChaserBayesianMAML, n_particles=3)
    expected = (chasers(method, tasks) - leaders(method, tasks, query_y)).square().sum((1, 2))
    assert torch.allclose(method.loss(tasks, query_y), expected)
    assert (expected > 0).all()


def test_the_chaser_has_a_fixed_prior(drawn):
    tasks, _ = drawn
    method = make(ChaserBayesianMAML, n_particles=2)
    points, theta = labelled(method, tasks), method.head.flatten(1).expand(4, -1, -1).detach()
    found = method.energy_gradient(theta, points, tasks.class_mask)
    for t in range(4):
        for p in range(2):
            slope = torch.func.grad(energy)(method.head[p].detach(), None, tasks.support_x[t], tasks.support_y[t])
            assert torch.allclose(found[t, p], slope.flatten())


def test_particles_in_one_place_stay_finite_and_together(drawn):
    tasks, query_y = drawn
    method = make(n_particles=3)
    with torch.no_grad():
        method.head.copy_(method.head[:1].expand(3, -1, -1).clone())
    method.loss(tasks, query_y).sum().backward()
    assert method.head.grad.isfinite().all()
    assert torch.allclose(method.head.grad[0], method.head.grad[2])


def test_a_head_for_more_classes_predicts_as_one_with_only_its_slots(drawn):
    tasks, query_y = drawn
    for cls in (BayesianMAML, ChaserBayesianMAML):
        small = make(cls)
        large = cls(make_backbone("identity", in_features=D), n_way=WAY + 2).double()
        with torch.no_grad():
            large.head[:, :WAY].copy_(small.head)
        assert torch.allclose(large.predict(tasks), small.predict(tasks))
        assert torch.allclose(large.loss(tasks, query_y), small.loss(tasks, query_y))


def test_many_features_stay_finite():
    generator = torch.Generator().manual_seed(0)
    source = ClassSource.from_arrays(torch.rand(60, 1600, generator=generator), torch.arange(60) % 6)
    tasks, query_y = EpisodeSampler(source, 5, 5, 3, seed=0).draw(2)
    backbone = make_backbone("identity", in_features=1600)
    assert BayesianMAML(backbone).loss(tasks, query_y).isfinite().all()


def test_one_direction_of_two_particles_is_the_formula():
    theta = torch.tensor([[[0.0], [2.0]]], dtype=torch.float64)
    gradient = torch.tensor([[[1.0], [-3.0]]], dtype=torch.float64)
    h, k = 4 / math.log(2), 0.5  # exp(-4 / h)
    expected = [(-1 + 3 * k - 2 / h * k * 2) / 2, (-k + 3 + 2 / h * k * 2) / 2]
    assert svgd_direction(theta, gradient).flatten().tolist() == pytest.approx(expected)


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_way": 1}, "`n_way` to be at least 2.*but got 1"),
        ({"n_particles": 0}, "`n_particles` to be at least 1, but got 0"),
        ({"n_steps": 0}, "`n_steps` to be at least 1"),
        ({"step_size": 0.0}, "`step_size` to be positive, but got 0.0"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        make_method("bayesian_maml", make_backbone("identity", in_features=D), **options)


def test_tasks_of_more_classes_than_the_head_has_are_refused(drawn):
    method = BayesianMAML(make_backbone("identity", in_features=D), n_way=2).double()
    with pytest.raises(InvalidInputError, match=r"at most n_way=2 classes.*but got 3\. Train with"):
        method.predict(drawn[0])
