import copy

import pytest
import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.methods.abml import ABML, Gaussian, kl_divergence
from mirrorshot.methods.maml import MAML
from mirrorshot.networks.backbones import Backbone, make_backbone
from mirrorshot.types import InvalidInputError, TaskBatch

D, WAY = 4, 3


@pytest.fixture
def drawn(clouds):
    return EpisodeSampler(clouds(D, 6, spread=0.5), WAY, 2, 4, seed=0).draw(3)


@pytest.fixture(scope="module")
def images():
    pixels = torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(1)).mul(255).byte()
    tasks, query_y = EpisodeSampler(ClassSource.from_arrays(pixels, torch.arange(40) % 4), 3, 2, 2, seed=0).draw(2)
    return tasks._replace(support_x=tasks.support_x / 255, query_x=tasks.query_x / 255), query_y


class Layer(Backbone):
    """One linear layer as a backbone."""

    def __init__(self):
        super().__init__((D,))
        weight = torch.randn(D, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x):
        return torch.tanh(x @ self.weight)


def make(**options):
    return make_method("abml", Layer(), n_way=WAY, **options).double()


def conv(**options):
    backbone = make_backbone("conv4", in_channels=1, image_size=16, generator=torch.Generator().manual_seed(0))
    return ABML(backbone, n_way=3, n_samples=2, **{"n_steps": 2, **options})


def noises(method, seed, *counts):
    """The random numbers that a method draws after `seed`, one table for each count of samples."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(method.log_sigma),)
    return [torch.randn(n, *shape, generator=generator, dtype=torch.float64) for n in counts]


def logits_of(weights, x):
    """Logits of one sampled network, whose head comes before the layer below it."""
    head, layer = weights[: WAY * (D + 1)].reshape(WAY, D + 1), weights[WAY * (D + 1) :].reshape(D, D)
    return torch.tanh(x @ layer) @ head[:, :-1].T + head[:, -1]


def cross_entropy(weights, x, y):
    return torch.nn.functional.cross_entropy(logits_of(weights, x), y)


def divergence(q, p):
    pair = (torch.distributions.Normal(g[0], g[1].exp()) for g in (q, p))
    return torch.distributions.kl_divergence(*pair).sum()


def descended(method, prior, x, y, noise):
    """Posterior of one task by loops and autograd; a proximal step solves its equation by iteration."""
    q = tuple(prior)
    rate, beta = method.step_size, method.kl_weight
    for eps in noise:

        def fit(mean, log_sigma, eps=eps):
            losses = [cross_entropy(mean + log_sigma.exp() * e, x, y) for e in eps]
            return sum(losses) / len(losses)

        slope = torch.func.grad(fit, (0, 1))(*q)
        pull = torch.func.grad(lambda m, s: divergence((m, s), prior), (0, 1))
        log_sigma = q[1] - rate * (slope[1] + beta * pull(*q)[1])
        mean = q[0] - rate * (slope[0] + beta * pull(*q)[0])
        for _ in range(200 if method.kl_step == "proximal" else 0):
            mean = 0.95 * mean + 0.05 * (q[0] - rate * (slope[0] + beta * pull(mean, q[1])[0]))
        q = mean, log_sigma
    return q


@pytest.mark.parametrize("kl_step", ["proximal", "gradient"])
def test_predictions_and_losses_are_those_of_loops_over_tasks_and_samples(drawn, kl_step):
    tasks, query_y = drawn
    method = make(n_samples=2, n_test_samples=3, kl_step=kl_step, n_iterations=1000, step_size=0.05, n_steps=3)
    prior = tuple(part.detach() for part in method.prior)
    method.seed(3)
    log_prob = method.predict(tasks)
    method.seed(3)
    loss = method.loss(tasks, query_y)
    *steps, last = noises(method, 3, 2, 2, 2, 3)
    precision = (-2 * prior[1]).exp()
    hyper = -torch.distributions.Normal(0.0, 1.0).log_prob(prior[0]) - torch.distributions.Gamma(1.0, 0.01).log_prob(
        precision
    )
    constant = len(prior[0]) * (0.5 * torch.tensor(2 * torch.pi).log() - torch.tensor(0.01).log())
    for t in range(3):
        q = descended(method, prior, tasks.support_x[t], tasks.support_y[t], steps)
        assert not torch.allclose(q[0], prior[0], atol=1e-3)
        networks = [q[0] + q[1].exp() * e for e in last]
        prob = sum(logits_of(w, tasks.query_x[t]).softmax(-1) for w in networks) / 3
        assert torch.allclose(log_prob[t].exp(), prob)
        networks = [q[0] + q[1].exp() * e for e in noises(method, 3, 2, 2, 2, 2)[-1]]
        nll = sum(cross_entropy(w, tasks.query_x[t], query_y[t]) for w in networks) / 2
        expected = nll + 0.1 * (divergence(q, prior) + (hyper.sum() - constant) / 1000)
        assert torch.allclose(loss[t], expected)


def test_the_hyper_prior_of_a_convolutional_network_does_not_drown_the_queries():
    method = ABML(make_backbone("conv4s", generator=torch.Generator().manual_seed(0)), kl_weight=1e-3)
    prior = method.prior
    hyper = (0.5 * prior.mean.square().sum() + 0.01 * (-2 * prior.log_sigma).exp().sum()).item()
    assert 23 < hyper / method.n_iterations < 25  # where a guess costs log 5 = 1.6
    x = torch.randn(1, 5, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    y, ones = torch.arange(5)[None], torch.ones(1, 5)
    tasks = TaskBatch(x, y, x, 5, ones, ones, ones.bool())
    losses = []
    for n_iterations in (method.n_iterations, 10**15):
        method.seed(0)
        method.n_iterations = n_iterations
        losses.append(method.loss(tasks, y).item())
    assert losses[0] - losses[1] == pytest.approx(1e-3 * hyper / 60_000, rel=0.05)


def test_the_hyper_prior_is_that_of_the_normal_and_gamma_densities(drawn):
    def loss_and_hyper(shift):
        method = make(step_size=1e-12, kl_weight=0.3, n_iterations=7, n_samples=1)
        plain = make(step_size=1e-12, kl_weight=1e-12, n_iterations=7, n_samples=1)
        found = []
        for each in (method, plain):
            with torch.no_grad():
                each.log_sigma.add_(shift)
                each.head.mul_(1 + shift)
            each.seed(3)
            found.append(each.loss(*drawn).detach())
        mean, precision = method.prior.mean.detach(), (-2 * method.prior.log_sigma.detach()).exp()
        log_density = torch.distributions.Normal(0.0, 1.0).log_prob(mean).sum()
        return found[0] - found[1], log_density + torch.distributions.Gamma(1.0, 0.01).log_prob(precision).sum()

    (one, at_one), (other, at_other) = loss_and_hyper(0.0), loss_and_hyper(0.5)
    expected = (-0.3 / 7 * (at_other - at_one)).expand(3)  # constants cancel
    assert abs(float(expected[0])) > 0.1
    assert torch.allclose(other - one, expected, rtol=1e-6)


def test_without_spread_and_divergence_it_is_maml(drawn):
    tasks, query_y = drawn
    method = make(kl_weight=1e-20, step_size=0.1, n_samples=1, n_iterations=10**18)
    maml = MAML(Layer(), n_way=WAY, step_size=0.1).double()
    with torch.no_grad():
        method.log_sigma.fill_(-12.0)
        maml.head.weight.copy_(method.head[:, :-1])
        maml.head.bias.copy_(method.head[:, -1])
    assert torch.allclose(method.predict(tasks), maml.predict(tasks), atol=1e-4)
    ours, theirs = (m.loss(tasks, query_y).sum() for m in (method, maml))
    assert torch.allclose(ours, theirs, atol=1e-4)
    ours, theirs = (torch.autograd.grad(x, m.backbone.weight)[0] for x, m in ((ours, method), (theirs, maml)))
    assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("kl_step", ["proximal", "gradient"])
def test_the_gradient_in_the_prior_is_that_of_finite_differences(drawn, kl_step):
    tasks, query_y = drawn
    method = make(n_samples=2, kl_step=kl_step, step_size=0.05, n_steps=3)
    with torch.no_grad():
        method.log_sigma.add_(2.0)

    def total():
        method.seed(0)
        return method.loss(tasks, query_y).sum()

    parameters = dict(method.named_parameters())
    generator = torch.Generator().manual_seed(1)
    for gradient, (name, parameter) in zip(
        torch.autograd.grad(total(), list(parameters.values())), parameters.items(), strict=True
    ):
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        values = []
        with torch.no_grad():
            for shift in (1e-5, -2e-5):
                parameter.add_(direction, alpha=shift)
                values.append(total().item())
            parameter.add_(direction, alpha=1e-5)
        assert (gradient * direction).sum().item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5), name


def test_first_order_has_the_same_loss_and_another_gradient(drawn):
    tasks, query_y = drawn
    losses, gradients = [], []
    for first_order in (False, True):
        method = make(first_order=first_order, step_size=0.2)
        losses.append(method.loss(tasks, query_y).sum())
        gradients.append(torch.autograd.grad(losses[-1], method.backbone.weight)[0])
    assert torch.equal(*losses)
    assert not torch.allclose(*gradients, rtol=1e-3)
    assert torch.nn.functional.cosine_similarity(*(g.flatten() for g in gradients), dim=0) > 0.5


def test_narrow_priors_hold_the_posterior_only_with_the_proximal_step(drawn):
    tasks, _ = drawn
    moved = {}
    for kl_step in ("proximal", "gradient"):
        method = make(kl_step=kl_step)
        with torch.no_grad():
            method.log_sigma.fill_(-6.0)
        moved[kl_step] = (method.adapt(tasks, tasks.class_mask, 8).mean - method.prior.mean).abs().max().item()
    assert moved["proximal"] < 1e-3
    assert moved["gradient"] > 1e3


def test_predictions_can_take_more_steps_than_training(drawn):
    tasks, query_y = drawn
    few, more, as_many = make(n_steps=2), make(n_steps=2, n_test_steps=4), make(n_steps=4)
    assert torch.equal(few.loss(tasks, query_y), more.loss(tasks, query_y))
    for method in (few, more, as_many):
        method.seed(3)
    predictions = [method.predict(tasks) for method in (few, more, as_many)]
    assert torch.equal(predictions[1], predictions[2])
    assert not torch.allclose(predictions[0], predictions[1])


def test_sigma_starts_around_the_given_value():
    log_sigma = conv(initial_log_sigma=-6.0).log_sigma
    assert -6.5 <= log_sigma.min() < -6.49
    assert -5.51 < log_sigma.max() <= -5.5
    assert torch.allclose(log_sigma, conv().log_sigma - 2.5)


def test_divergence_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    q, p = (Gaussian(*torch.randn(2, 7, generator=generator, dtype=torch.float64)) for _ in range(2))
    assert torch.allclose(kl_divergence(q, p), divergence(q, p))
    assert kl_divergence(p, p) == 0


def test_images_are_classified_the_same_alone_and_in_a_batch_also_without_gradients(images):
    tasks, query_y = images
    method = conv()
    results = []
    for part in (slice(0, 2), slice(0, 1), slice(1, 2)):
        method.seed(5)
        loss = method.loss(tasks.select(part), query_y[part])
        with torch.no_grad():
            results.append((loss, method.predict(tasks.select(part))))
    for batch, *singles in zip(*results, strict=True):
        assert torch.allclose(batch, torch.cat(singles), atol=1e-4)
    method.seed(5)
    method.loss(tasks, query_y)
    assert torch.allclose(method.predict(tasks), results[0][1], atol=1e-4)


def test_every_weight_learns_and_evaluation_uses_the_statistics_of_the_batch_too(images):
    tasks, query_y = images
    method = conv()
    method.loss(tasks, query_y).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())
    assert (method.log_sigma.grad != 0).all()
    frozen = copy.deepcopy(method).eval().requires_grad_(False)
    outcomes = []
    for one in (method, frozen):
        one.seed(0)
        outcomes.append(one.predict(tasks))
    assert torch.allclose(*outcomes, atol=1e-5)


def test_padded_images_change_nothing(images):
    tasks, _ = images
    method = conv().double()
    tasks = tasks._replace(support_x=tasks.support_x.double(), query_x=tasks.query_x.double())
    blank, zero = torch.zeros(2, 1, 1, 16, 16, dtype=torch.float64), torch.zeros(2, 1)
    padded = tasks._replace(
        support_x=torch.cat([tasks.support_x, blank], 1),
        support_y=torch.cat([tasks.support_y, zero.long()], 1),
        support_weight=torch.cat([tasks.support_weight, zero], 1),
        query_x=torch.cat([tasks.query_x, blank], 1),
        query_weight=torch.cat([tasks.query_weight, zero], 1),
    )
    method.seed(0)
    expected = method.predict(tasks)
    method.seed(0)
    assert torch.allclose(method.predict(padded)[:, :-1], expected)


def test_a_network_in_half_precision_has_probabilities_in_single(images):
    tasks, query_y = images
    method = conv()
    method.seed(0)
    full = method.loss(tasks, query_y)
    method.network_dtype = torch.bfloat16
    method.seed(0)
    loss = method.loss(tasks, query_y)
    loss.sum().backward()
    assert not torch.equal(loss, full)
    assert loss.dtype == torch.float32
    assert loss.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_slots_without_a_class_change_nothing(drawn):
    tasks, query_y = drawn
    few = tasks._replace(class_mask=torch.tensor([[True, True, False]]).expand(3, -1))
    few = few._replace(
        support_weight=(few.support_y < 2).float(), support_y=few.support_y * (few.support_y < 2),
        query_weight=(query_y < 2).float(),
    )  # fmt: skip
    results = []
    for shift in (0.0, 3.0):
        method = make(n_iterations=10**15)
        with torch.no_grad():
            method.head[2].add_(shift)
        results.append((method.predict(few), method.loss(few, query_y * (query_y < 2))))
    for first, second in zip(*results, strict=True):
        assert torch.allclose(first, second)
    assert (results[0][0][..., 2] == -torch.inf).all()


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": 0}, "`n_steps` to be at least 1, but got 0"),
        ({"n_samples": 0}, "`n_samples` to be at least 1"),
        ({"n_test_samples": 0}, "`n_test_samples` to be at least 1"),
        ({"n_test_steps": 0}, "`n_test_steps` to be at least 1, but got 0"),
        ({"n_iterations": 0}, "`n_iterations` to be at least 1"),
        ({"kl_weight": -1.0}, r"`kl_weight` to be positive, but got -1\.0"),
        ({"initial_log_sigma": float("nan")}, "`initial_log_sigma` to be finite, but got nan"),
        ({"step_size": 0.0}, "`step_size` to be positive"),
        ({"kl_step": "newton"}, "'proximal' or 'gradient', but got 'newton'"),
        ({"n_way": 1}, "`n_way` to be at least 2"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        ABML(make_backbone("identity", in_features=D), **options)


def test_tasks_of_more_classes_than_the_head_has_are_refused(drawn):
    with pytest.raises(InvalidInputError, match=r"at most n_way=2 classes.*but got 3"):
        ABML(Layer(), n_way=2).double().predict(drawn[0])
