"""MD-BFSC: its objectives against the bound and the predictions they stand for, its temperature, its options."""

import pytest
import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.gp import elbo, mirror_descent
from mirrorshot.methods import make_method
from mirrorshot.methods.mirror_gp import MirrorGP
from mirrorshot.metrics import calibration_bins, expected_calibration_error
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.softmax.moments import log_predictive, softmax_moments
from mirrorshot.types import InvalidInputError, TaskBatch

D = 8


@pytest.fixture
def drawn(clouds):
    return EpisodeSampler(clouds(D), 5, 1, 10, seed=0).draw(30)


@pytest.fixture
def few(drawn):
    tasks, query_y = drawn
    return tasks.select(slice(4)), query_y[:4]


def make(**options):
    return make_method("mirror_gp", make_backbone("identity", in_features=D), **options).double()


def joint(method, tasks, query_y):
    x, y = torch.cat([tasks.support_x, tasks.query_x], 1), torch.cat([tasks.support_y, query_y], 1)
    return method.kernel(x), y


def test_ml_is_the_bound_of_support_and_query_per_point(few):
    tasks, query_y = few
    method = make(n_steps=40, step_size=0.6)
    K, y = joint(method, tasks, query_y)
    posterior, _ = mirror_descent(K, y, n_way=5)
    assert torch.allclose(method.loss(tasks, query_y), -elbo(K, y, posterior) / 55, atol=1e-5)


def test_cml_is_the_bound_of_all_minus_that_of_the_support_per_query(few):
    tasks, query_y = few
    method = make(n_steps=40, step_size=0.6, objective="cml")
    K, y = joint(method, tasks, query_y)
    bounds = [elbo(k, t, mirror_descent(k, t, n_way=5)[0]) for k, t in ((K, y), (K[..., :5, :5], y[:, :5]))]
    assert torch.allclose(method.loss(tasks, query_y), (bounds[1] - bounds[0]) / 50, atol=1e-5)


def test_pl_is_the_cross_entropy_of_the_predictions(drawn):
    tasks, query_y = drawn
    method = make(objective="pl", gradient="envelope", temperature=False)
    expected = torch.nn.functional.nll_loss(method.predict(tasks).mT, query_y, reduction="none").mean(1)
    assert torch.allclose(method.loss(tasks, query_y), expected, atol=1e-3)


def test_unrolled_pl_is_the_cross_entropy_after_the_steps_of_training(drawn):
    tasks, query_y = drawn
    options = {"objective": "pl", "kernel_options": {"outputscale": 20.0}, "temperature": False}
    one, many = (make(n_steps=n, step_size=rho, **options) for n, rho in ((1, 1.0), (80, 0.5)))
    K, _ = joint(one, tasks, query_y)
    # the first step is least squares: every site has the label less 1 / C, and the precision of the prior
    prior = softmax_moments(torch.zeros(5, dtype=K.dtype), K.diagonal(dim1=-2, dim2=-1)[0, 0, :1].expand(5))
    target = torch.eye(5, dtype=K.dtype)[tasks.support_y] - 0.2
    shifted = K[:, 0, :5, :5] + torch.eye(5) / prior.curvature[0]
    weights = torch.linalg.solve(shifted, target / prior.curvature[0])
    mean = K[:, 0, 5:, :5] @ weights
    reduction = (K[:, 0, :5, 5:] * torch.linalg.solve(shifted, K[:, 0, :5, 5:])).sum(1)
    var = (K.diagonal(dim1=-2, dim2=-1)[:, 0, 5:] - reduction)[..., None].expand_as(mean)
    expected = torch.nn.functional.nll_loss(log_predictive(mean, var).mT, query_y, reduction="none").mean(1)
    assert torch.allclose(one.loss(tasks, query_y), expected, atol=1e-6)
    at_optimum = torch.nn.functional.nll_loss(many.predict(tasks).mT, query_y, reduction="none").mean(1)
    assert torch.allclose(many.loss(tasks, query_y), at_optimum, atol=1e-3)
    assert not torch.allclose(expected, at_optimum, atol=0.05)


def test_tpl_is_the_cross_entropy_of_the_tempered_predictions(drawn):
    tasks, query_y = drawn
    method = make(objective="tpl", gradient="envelope")
    method.tune(tasks, query_y)
    assert float(method.log_temperature) < -0.2
    expected = torch.nn.functional.nll_loss(method.predict(tasks).mT, query_y, reduction="none").mean(1)
    assert torch.allclose(method.loss(tasks, query_y), expected, atol=3e-3)


def test_before_it_is_tuned_tpl_is_pl(drawn):
    losses = [make(objective=name).loss(*drawn) for name in ("pl", "tpl")]
    assert torch.allclose(*losses, atol=1e-9)


def test_pl_at_a_training_temperature_is_the_cross_entropy_at_it(drawn):
    tasks, query_y = drawn
    raw = make(temperature=False).predict(tasks)
    expected = torch.nn.functional.cross_entropy((raw / 0.5).mT, query_y, reduction="none").mean(1)
    method = make(objective="pl", gradient="envelope", training_temperature=0.5)
    assert torch.allclose(method.loss(tasks, query_y), expected, atol=3e-3)
    method.tune(tasks, query_y)
    assert torch.allclose(method.loss(tasks, query_y), expected, atol=3e-3)


@pytest.mark.parametrize("objective", ["ml", "cml"])
def test_a_mixture_is_the_weighted_sum_of_its_objectives(drawn, objective):
    tasks, query_y = drawn
    bound, pl, mixture = (
        make(objective=name, predictive_weight=weight).loss(tasks, query_y)
        for name, weight in ((objective, 0.0), ("pl", 0.0), (objective, 0.3))
    )
    assert torch.allclose(mixture, bound + 0.3 * pl, atol=1e-9)


@pytest.mark.parametrize("objective", ["ml", "cml", "pl", "tpl"])
def test_the_gradient_in_the_kernel_is_that_of_finite_differences(few, objective):
    tasks, query_y = few
    method = make(objective=objective, n_steps=25, step_size=0.6, kernel_options={"outputscale": 3.0})
    method.loss(tasks, query_y).sum().backward()
    gradient = float(method.kernel.log_outputscale.grad)
    values = []
    for shift in (1e-4, -2e-4):
        with torch.no_grad():
            method.kernel.log_outputscale.add_(shift)
        values.append(method.loss(tasks, query_y).sum().item())
    assert gradient == pytest.approx((values[0] - values[1]) / 2e-4, rel=2e-3)


def test_tuning_calibrates_the_predictions_and_keeps_their_order(drawn):
    tasks, query_y = drawn
    method = make()
    before = method.predict(tasks).exp().detach()
    method.tune(tasks, query_y)
    after = method.predict(tasks).exp().detach()
    ece = [float(expected_calibration_error(calibration_bins(p, query_y, 15))) for p in (before, after)]
    assert ece[0] > 0.2
    assert ece[1] < 0.05
    assert torch.equal(before.argmax(-1), after.argmax(-1))


def test_without_a_temperature_tuning_leaves_the_predictions_alone(drawn):
    method = make(temperature=False)
    before = method.predict(drawn[0])
    method.tune(*drawn)
    assert torch.equal(before, method.predict(drawn[0]))


def test_the_start_is_fitted_to_one_view_and_the_temperature_to_both():
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(12, 3, 1, 28, 28, generator=generator)
    support_x, query_x = (
        centres.repeat_interleave(n, 1) + 1.4 * torch.randn(12, 3 * n, 1, 28, 28, generator=generator) for n in (1, 6)
    )
    query_y = torch.arange(18).expand(12, 18) // 6
    support_y, ones = torch.arange(3).expand(12, 3), torch.ones(12, 18)
    tasks = TaskBatch(support_x, support_y, query_x, 3, ones[:, :3], ones, torch.ones(12, 3).bool())
    found = []
    for average_flips in (False, True):
        backbone = make_backbone("conv4s", generator=torch.Generator().manual_seed(1))
        backbone.average_flips = average_flips
        method = make_method("mirror_gp", backbone, start="amortised").eval()
        method.tune(tasks, query_y)
        found.append(method)
    assert torch.equal(found[0].amortised_own, found[1].amortised_own)
    assert not torch.equal(found[0].log_temperature, found[1].log_temperature)


def test_amortised_sites_bring_one_step_close_to_the_optimum(drawn, few):
    tasks, query_y = drawn
    options = {"n_steps": 1, "step_size": 0.7, "kernel_options": {"outputscale": 4.0}}
    cold, warm = make(**options), make(start="amortised", **options)
    warm.tune(tasks, query_y)
    tasks, query_y = few
    best = make(n_steps=60, step_size=0.6, kernel_options={"outputscale": 4.0}).loss(tasks, query_y)
    gap_cold, gap_warm = ((m.loss(tasks, query_y) - best).mean() for m in (cold, warm))
    assert 0 <= gap_warm.item() < 0.1 * gap_cold.item()


def test_a_network_in_half_precision_leaves_the_gaussian_process_in_single():
    method = MirrorGP(make_backbone("conv4s", generator=torch.Generator().manual_seed(0)))
    images = torch.rand(40, 1, 28, 28, generator=torch.Generator().manual_seed(1)).mul(255).byte()
    tasks, query_y = EpisodeSampler(ClassSource.from_arrays(images, torch.arange(40) % 4), 3, 1, 2, seed=0).draw(1)
    tasks = tasks._replace(support_x=tasks.support_x / 255, query_x=tasks.query_x / 255)
    full = method.loss(tasks, query_y)
    method.network_dtype = torch.bfloat16
    loss = method.loss(tasks, query_y)
    loss.sum().backward()
    assert not torch.equal(loss, full)
    assert loss.dtype == torch.float32
    assert method.predict(tasks).dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 1.5}, r"`step_size` in \(0, 1\], but got 1.5"),
        ({"n_steps": 0}, "`n_steps` to be at least 1"),
        ({"start": "warm"}, "'prior' or 'amortised', but got 'warm'"),
        ({"predictive_weight": -1.0}, "`predictive_weight` to be positive, but got -1.0"),
        ({"objective": "map"}, "'ml', 'cml', 'pl' or 'tpl', but got 'map'"),
        ({"training_temperature": 0.0}, "`training_temperature` to be positive, but got 0.0"),
        ({"objective": "tpl", "temperature": False}, "`temperature` to be True for objective 'tpl'"),
        ({"objective": "tpl", "training_temperature": 0.5}, "training_temperature=1 for objective 'tpl'"),
        ({"objective": "pl", "predictive_weight": 0.5}, "predictive_weight=0 for objective 'pl'"),
        ({"kernel": "gauss"}, "one of cosine, rbf.*but got 'gauss'"),
        ({"kernel_options": {"colour": 1}}, "arguments of kernel 'cosine'"),
    ],
)
def test_a_wrong_option_is_refused(as_for_users, options, message):
    with pytest.raises(InvalidInputError, match=message):
        make(**options)


@pytest.mark.parametrize("objective", ["ml", "pl"])
def test_kernels_of_another_number_of_classes_are_refused(as_for_users, few, objective):
    tasks, query_y = few
    method = make(objective=objective, kernel_options={"n_way": 3})
    with pytest.raises(InvalidInputError, match=r"tasks of 3 classes.*but got 5. Leave out `n_way`"):
        method.loss(tasks, query_y)
    with pytest.raises(InvalidInputError, match="tasks of 3 classes"):
        method.predict(tasks)
