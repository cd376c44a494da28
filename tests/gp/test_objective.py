import pytest
import torch
from torch.testing import assert_close

from mirrorshot.gp import mirror, mirror_descent
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.softmax.moments import softmax_moments
from mirrorshot.types import InvalidInputError

PRECISE = {"max_steps": 200, "tol": 1e-12}


def test_the_first_bound_is_that_of_the_start(few_shot_tasks):
    K, y = few_shot_tasks(2, 5, 2, 4.0)
    _, info = mirror_descent(K, y, n_way=5)
    # at the prior all classes are alike: E log p(y) = -E log sum exp f, the same for each point
    moments = softmax_moments(torch.zeros(1, 5).double(), torch.full((1, 5), 4.0).double())
    assert_close(info.elbo[:, 0], -10 * moments.logsumexp.expand(2), rtol=1e-9, atol=0)


def test_a_promised_bound_of_the_variance_and_skipped_checks_change_nothing(few_shot_tasks):
    K, y = few_shot_tasks(2, 3, 3, 4.0)
    plain, _ = mirror_descent(K, y, n_way=3, **PRECISE)
    quick, _ = mirror_descent(K, y, n_way=3, max_std=3.0, validate=False, **PRECISE)
    assert_close(quick.mean, plain.mean, rtol=0, atol=1e-5)


def test_an_integer_weight_is_a_repeated_point(small_task):
    K, y = small_task(n_way=3, n=5, scale=5.0)
    index = torch.tensor([0, 1, 2, 2, 3, 4, 4, 4])
    weight = torch.tensor([[1.0, 1.0, 2.0, 1.0, 3.0]], dtype=torch.float64)
    weighted, info = mirror_descent(K, y, n_way=3, weight=weight, **PRECISE)
    repeated, info_repeated = mirror_descent(K[..., index, :][..., index], y[:, index], n_way=3, **PRECISE)
    assert_close(info.elbo[:, -1], info_repeated.elbo[:, -1], rtol=0, atol=1e-8)
    assert_close(weighted.mean[..., index], repeated.mean, rtol=0, atol=1e-5)
    assert_close(weighted.var[..., index], repeated.var, rtol=0, atol=1e-5)


@pytest.mark.parametrize("filler", [0, 2, -1, 99])
def test_a_point_of_weight_zero_does_not_exist(small_task, filler):
    K, y = small_task(n_way=3, n=6, scale=5.0)
    y[:, 4:] = filler
    weight = (torch.arange(6) < 4).double()[None]
    options = {"n_way": 3, "max_std": 3.0, **PRECISE}
    padded, info = mirror_descent(K, y, weight=weight, **options)
    smaller, info_smaller = mirror_descent(K[..., :4, :4], y[:, :4], **options)
    assert_close(info.elbo[:, [0, -1]], info_smaller.elbo[:, [0, -1]], rtol=0, atol=1e-9)
    assert_close(padded.mean[..., :4], smaller.mean, rtol=0, atol=1e-6)
    assert (padded.sites.shift[..., 4:] == 0).all()
    assert (padded.sites.precision[..., 4:] == 0).all()


@pytest.mark.parametrize("step_size", ["safeguarded", 0.5])
def test_a_start_says_nothing_about_points_of_weight_zero(small_task, step_size):
    K, y = small_task(n_way=3, n=6, scale=5.0)
    weight = (torch.arange(6) < 4).double()[None]
    start = GaussianSites(torch.full((1, 3, 6), 0.5).double(), torch.full((1, 3, 6), 0.2).double())
    options = {"n_way": 3, "max_steps": 2, "step_size": step_size, "max_std": 3.0}
    padded, info = mirror_descent(K, y, weight=weight, start=start, **options)
    smaller = GaussianSites(*(s[..., :4] for s in start))
    _, info_smaller = mirror_descent(K[..., :4, :4], y[:, :4], start=smaller, **options)
    assert all((s[..., 4:] == 0).all() for s in padded.sites)
    assert_close(info.elbo, info_smaller.elbo, rtol=0, atol=1e-9)


def test_a_class_outside_the_mask_does_not_exist(small_task):
    K, y = small_task(n_way=3, n=6, scale=5.0)
    mask = torch.tensor([[True, True, True, False, False]])
    padded, info = mirror_descent(K, y, n_way=5, class_mask=mask, **PRECISE)
    smaller, info_smaller = mirror_descent(K, y, n_way=3, **PRECISE)
    assert_close(info.elbo[:, [0, -1]], info_smaller.elbo[:, [0, -1]], rtol=0, atol=1e-8)
    assert_close(padded.mean[:, :3], smaller.mean, rtol=0, atol=1e-5)
    assert (padded.mean[:, 3:] == 0).all()
    unmasked, _ = mirror_descent(K, y, n_way=5, **PRECISE)
    assert (unmasked.mean[:, 3:] < -0.05).all()  # classes that exist but have no point


def test_tasks_of_different_sizes_fit_one_batch(few_shot_tasks):
    """A 4-way 3-shot, a 2-way 5-shot and a 3-way 1-shot task, padded to 12 points and 4 classes."""
    sizes = [(4, 3), (2, 5), (3, 1)]
    K, y = torch.zeros(3, 1, 12, 12).double(), torch.zeros(3, 12).long()
    weight, mask = torch.zeros(3, 12).double(), torch.zeros(3, 4).bool()
    alone = []
    for t, (n_way, n_shot) in enumerate(sizes):
        n = n_way * n_shot
        K[t : t + 1, :, :n, :n], y[t, :n] = few_shot_tasks(1, n_way, n_shot, 6.0, seed=t)
        weight[t, :n], mask[t, :n_way] = 1.0, True
        alone.append(mirror_descent(K[t : t + 1, :, :n, :n], y[t : t + 1, :n], n_way=n_way, **PRECISE))
    posterior, info = mirror_descent(K, y, n_way=4, weight=weight, class_mask=mask, **PRECISE)
    for t, ((n_way, n_shot), (one, one_info)) in enumerate(zip(sizes, alone, strict=True)):
        n = n_way * n_shot
        assert_close(info.elbo[t, -1], one_info.elbo[0, -1], rtol=0, atol=1e-7)
        assert_close(posterior.mean[t, :n_way, :n], one.mean[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("step_size", ["safeguarded", 0.7])
def test_permuting_the_classes_permutes_the_posterior(few_shot_tasks, step_size):
    K, y = few_shot_tasks(2, 4, 2, 8.0)
    order = torch.tensor([2, 0, 3, 1])
    posterior, info = mirror_descent(K, y, n_way=4, step_size=step_size)
    permuted, info_permuted = mirror_descent(K, order[y], n_way=4, step_size=step_size)
    assert_close(permuted.mean[:, order], posterior.mean, rtol=0, atol=1e-9)
    assert_close(info_permuted.elbo, info.elbo, rtol=0, atol=1e-9)


@pytest.mark.parametrize("step_size", ["safeguarded", 0.7])
def test_a_batch_equals_a_loop(few_shot_tasks, step_size):
    """Tasks of one scale and of very different ones: nothing may leak from one task into another."""
    K, y = few_shot_tasks(4, 3, 3, 1.0)
    K = K * torch.tensor([0.5, 4.0, 20.0, 100.0], dtype=torch.float64)[:, None, None, None]
    options = {"n_way": 3, "step_size": step_size, "max_steps": 12, "max_std": 10.0}
    posterior, info = mirror_descent(K, y, **options)
    for t in range(4):
        one, one_info = mirror_descent(K[t : t + 1], y[t : t + 1], **options)
        assert_close(info.elbo[t], one_info.elbo[0], rtol=0, atol=1e-8)
        assert info.n_steps[t] == one_info.n_steps[0]
        assert_close(posterior.mean[t], one.mean[0], rtol=1e-6, atol=1e-7)


def test_chunks_of_tasks_do_not_change_the_posterior(few_shot_tasks, monkeypatch):
    K, y = few_shot_tasks(7, 3, 2, 5.0)
    amortised = GaussianSites(torch.zeros(7, 3, 6).double(), torch.full((7, 3, 6), 0.1).double())
    for start in ("prior", amortised):
        whole, info = mirror_descent(K, y, n_way=3, start=start)
        with monkeypatch.context() as patch:
            patch.setattr(mirror, "CHUNK_ELEMENTS", 3 * 6 * 6 * 2)  # two tasks
            pieces, info_pieces = mirror_descent(K, y, n_way=3, start=start)
        assert_close(pieces.mean, whole.mean, rtol=0, atol=1e-9)
        assert_close(info_pieces.elbo, info.elbo, rtol=0, atol=1e-9)
        assert torch.equal(info_pieces.n_steps, info.n_steps)


def test_one_kernel_per_class_equals_a_shared_one_where_they_are_equal(few_shot_tasks):
    K, y = few_shot_tasks(2, 3, 2, 5.0)
    shared, _ = mirror_descent(K, y, n_way=3)
    copied, _ = mirror_descent(K.repeat(1, 3, 1, 1), y, n_way=3)
    assert_close(copied.mean, shared.mean, rtol=0, atol=1e-9)


def test_a_class_without_points_is_unlikely_but_possible(few_shot_tasks):
    K, y = few_shot_tasks(2, 3, 3, 5.0)
    posterior, info = mirror_descent(K, y, n_way=4)
    prob = softmax_moments(posterior.mean.mT, posterior.var.mT).prob
    assert info.converged.all()
    assert (prob.argmax(-1) == y).all()
    assert (prob[..., 3] < 0.25).all()
    assert (prob[..., 3] > 0).all()


def test_one_point_is_enough():
    """N = 1: the mean of its class rises as much as the others fall together."""
    K = torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64)
    posterior, info = mirror_descent(K, torch.tensor([[1]]), n_way=3, **PRECISE)
    mean = posterior.mean[0, :, 0]
    assert info.converged.all()
    assert mean.sum().item() == pytest.approx(0, abs=1e-5)
    assert mean[0].item() == pytest.approx(mean[2].item(), abs=1e-5)
    assert mean.argmax() == 1


def test_wrong_tensors_are_refused_with_a_reason(small_task, as_for_users):
    K, y = small_task(n_way=3, n=4)
    with pytest.raises(InvalidInputError, match=r"labels `y` of shape \(1, 4\) to match `K`, but got \(1, 3\)"):
        mirror_descent(K, y[:, :3], n_way=3)
    with pytest.raises(InvalidInputError, match=r"labels `y` to be integers, but got torch.float64"):
        mirror_descent(K, y.double(), n_way=3)
    with pytest.raises(InvalidInputError, match=r"1 or n_way = 3 matrices per task, but got 2"):
        mirror_descent(K.repeat(1, 2, 1, 1), y, n_way=3)
    with pytest.raises(InvalidInputError, match=r"square matrices of shape .* but got \(1, 1, 4, 3\)"):
        mirror_descent(K[..., :3], y, n_way=3)
    with pytest.raises(InvalidInputError, match="finite, but task 0 contains NaN"):
        mirror_descent(K * float("nan"), y, n_way=3)
