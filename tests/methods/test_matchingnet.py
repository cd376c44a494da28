"""MatchingNet against torch's own LSTM layers, one task and one query at a time."""

import pytest
import torch
from torch import nn

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods.matchingnet import MatchingNet
from mirrorshot.networks.backbones import make_backbone

D = 5


def make(seed=0):
    return MatchingNet(make_backbone("identity", in_features=D), seed=seed).double()


def draw(n_way=3, n_shot=2, n_query=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, D, generator=generator, dtype=torch.float64)
    source = ClassSource.from_arrays(x, torch.arange(60) % 6)
    return EpisodeSampler(source, n_way, n_shot, n_query, seed=seed).draw(3)


def torch_lstm(method):
    """Both directions as one layer of torch."""
    lstm = nn.LSTM(D, D, bidirectional=True).double()
    with torch.no_grad():
        for cell, suffix in ((method.forward_cell, ""), (method.backward_cell, "_reverse")):
            for name, parameter in cell.named_parameters():
                getattr(lstm, name.replace("_ih", "_ih_l0").replace("_hh", "_hh_l0") + suffix).copy_(parameter)
    return lstm


def by_hand(method, s, y, f, n_way):
    """Class probabilities of one query of one task."""
    ahead, back = torch_lstm(method)(s[:, None])[0][:, 0].chunk(2, -1)
    g = s + ahead + back
    h, c = f, torch.zeros_like(f)
    for _ in range(len(s)):
        r = torch.softmax(g @ h, 0) @ g
        h, c = method.query_cell(torch.cat([f, r])[None], (h[None], c[None]))
        h, c = h[0] + f, c[0]
    attention = torch.softmax(100 * nn.functional.cosine_similarity(h[None], g).clamp(min=0), 0)
    return torch.stack([attention[y == k].sum() for k in range(n_way)])


def test_probabilities_are_those_of_torch_layers_one_query_at_a_time():
    tasks, _ = draw()
    method = make()
    prob = method.predict(tasks).exp()
    for t in range(3):
        for m in range(12):
            expected = by_hand(method, tasks.support_x[t], tasks.support_y[t], tasks.query_x[t, m], 3)
            torch.testing.assert_close(prob[t, m], expected)


def test_the_loss_is_the_mean_negative_log_probability():
    tasks, query_y = draw()
    method = make()
    log_prob = method.predict(tasks)
    expected = [-sum(log_prob[t, m, query_y[t, m]] for m in range(12)) / 12 for t in range(3)]
    torch.testing.assert_close(method.loss(tasks, query_y), torch.stack(expected))


def test_padding_between_the_points_changes_nothing():
    tasks, _ = draw()
    place = [0, 2, 3, 4, 6, 7]  # of the six points among eight
    x, y, weight = torch.full((3, 8, D), 9.0).double(), torch.zeros(3, 8, dtype=torch.int64), torch.zeros(3, 8)
    x[:, place], y[:, place], weight[:, place] = tasks.support_x, tasks.support_y, 1.0
    padded = tasks._replace(support_x=x, support_y=y, support_weight=weight)
    method = make()
    torch.testing.assert_close(method.predict(padded), method.predict(tasks))


def test_tasks_of_different_sizes_are_those_tasks_alone():
    tasks, _ = draw()
    weight = tasks.support_weight.clone()
    weight[0, [1, 3, 5]] = 0  # the first task has one shot
    method = make()
    mixed = method.predict(tasks._replace(support_weight=weight))
    one_shot = tasks.select(slice(0, 1))
    kept = [0, 2, 4]
    alone = one_shot._replace(
        support_x=one_shot.support_x[:, kept],
        support_y=one_shot.support_y[:, kept],
        support_weight=one_shot.support_weight[:, kept],
    )
    torch.testing.assert_close(mixed[:1], method.predict(alone))
    torch.testing.assert_close(mixed[1:], method.predict(tasks)[1:])


def test_absent_classes_have_no_probability_and_leave_gradients_finite():
    tasks, query_y = draw()
    absent = torch.zeros(3, 1, dtype=torch.bool)
    wider = tasks._replace(n_way=4, class_mask=torch.cat([tasks.class_mask, absent], 1))
    method = make()
    assert (method.predict(wider)[..., 3] == -torch.inf).all()
    method.loss(wider, query_y).sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.abs().max() > 0 for p in method.parameters())


def test_the_order_of_the_support_matters():
    tasks, _ = draw()
    turned = tasks._replace(support_x=tasks.support_x.flip(1), support_y=tasks.support_y.flip(1))
    method = make()
    assert (method.predict(turned).exp() - method.predict(tasks).exp()).abs().max() > 1e-3


def test_the_gradient_is_that_of_finite_differences():
    tasks, query_y = draw(n_way=2, n_shot=1, n_query=2)
    method = make()
    generator = torch.Generator().manual_seed(3)
    way = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in method.parameters()]
    gradients = torch.autograd.grad(method.loss(tasks, query_y).sum(), list(method.parameters()))
    slope = sum((g * w).sum() for g, w in zip(gradients, way, strict=True))
    with torch.no_grad():
        values = []
        for step in (1e-6, -2e-6):
            torch._foreach_add_(list(method.parameters()), way, alpha=step)
            values.append(method.loss(tasks, query_y).sum())
    assert ((values[0] - values[1]) / 2e-6).item() == pytest.approx(slope.item(), rel=1e-5)


def test_a_confident_mistake_has_a_finite_loss_in_single_precision():
    x = torch.eye(2, D).repeat(1, 1, 1)
    tasks, query_y = draw(n_way=2, n_shot=1, n_query=1)
    tasks = tasks.select(slice(0, 1))._replace(support_x=x, query_x=50 * x)
    loss = make().float().loss(tasks, 1 - query_y[:1])
    assert loss.isfinite().all()
    assert loss.item() > 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_and_results_follow_seed_and_type(dtype):
    state = torch.get_rng_state()
    one, same, other = make(1).to(dtype), make(1).to(dtype), make(2).to(dtype)
    assert torch.equal(torch.get_rng_state(), state)
    tasks, _ = draw()
    tasks = tasks._replace(support_x=tasks.support_x.to(dtype), query_x=tasks.query_x.to(dtype))
    assert one.predict(tasks).dtype == dtype
    assert torch.equal(one.predict(tasks), same.predict(tasks))
    assert not torch.allclose(one.predict(tasks), other.predict(tasks))
    bound = D**-0.5
    assert all(0.7 * bound < p.abs().max() <= bound for p in one.parameters())


def test_in_half_precision_only_the_maps_are_rounded():
    tasks, query_y = draw()
    tasks = tasks._replace(support_x=tasks.support_x.float(), query_x=tasks.query_x.float())
    method = make().float()
    full = method.predict(tasks).exp()
    method.network_dtype = torch.bfloat16
    half = method.predict(tasks).exp()
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    assert (half - full).abs().mean() < 0.03  # similarities are multiplied by 100
    method.loss(tasks, query_y).sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in method.parameters())
