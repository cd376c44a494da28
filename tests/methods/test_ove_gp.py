"""OVE PG GP: losses and predictions against what they stand for, with the draws held; chains; options."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mirrorshot.data import EpisodeSampler
from mirrorshot.gp import one_vs_each as ove
from mirrorshot.methods import ove_gp
from mirrorshot.methods.ove_gp import OneVsEachGP
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import InvalidInputError

D, CHAINS = 8, 3


@pytest.fixture
def drawn(clouds):
    return EpisodeSampler(clouds(D), 4, 2, 3, seed=0).draw(2)


def make(**options):
    return OneVsEachGP(make_backbone("identity", in_features=D), **{"n_chains": CHAINS, **options}).double()


def labelled(K, y, tasks):
    return ove.make_pairs(K, y, torch.ones(y.shape), tasks.class_mask)


def test_ml_is_the_mean_evidence_over_the_chains_per_point(drawn):
    tasks, query_y = drawn
    method = make(n_steps=3)
    x, y = torch.cat([tasks.support_x, tasks.query_x], 1), torch.cat([tasks.support_y, query_y], 1)
    pairs = labelled(method.kernel(x), y, tasks)
    omega = ove.gibbs_pairs(pairs, n_steps=3, generator=torch.Generator().manual_seed(5), n_chains=CHAINS)
    method.seed(5)
    loss = method.loss(tasks, query_y)
    for t in range(2):
        one = type(pairs)(*(part[t : t + 1] for part in pairs))
        chains = [ove.pairs_evidence(one, omega[t, s][None, None]).item() for s in range(CHAINS)]
        assert loss[t].item() == pytest.approx(-sum(chains) / CHAINS / 20)


def test_predictions_average_the_probabilities_of_the_chains(drawn):
    tasks, _ = drawn
    method = make(n_test_steps=4)
    pairs = labelled(method.kernel(tasks.support_x), tasks.support_y, tasks)
    omega = ove.gibbs_pairs(pairs, n_steps=4, generator=torch.Generator().manual_seed(5), n_chains=CHAINS)
    K_cross, prior_var = method.kernel(tasks.support_x, tasks.query_x), method.kernel.diagonal(tasks.query_x)
    method.seed(5)
    log_prob = method.predict(tasks)
    for t in range(2):
        one = type(pairs)(*(part[t : t + 1] for part in pairs))
        scores = []
        for s in range(CHAINS):
            posterior = ove.condition_pairs(one, omega[t, s][None])
            latent = ove.predict_pairs(one, posterior, K_cross[t : t + 1], prior_var[t : t + 1])
            scores.append(ove.one_vs_each_scores(*latent, tasks.class_mask[:1])[0])
        assert_close(log_prob[t].exp(), torch.stack(scores).softmax(-1).mean(0))


class Largest(TorchDispatchMode):
    """Remembers the size of the largest result."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(t.numel() for t in tree_leaves(found) if isinstance(t, torch.Tensor))])
        return found


def largest_array(method, tasks):
    with Largest() as seen:
        method.predict(tasks)
    return seen.size


def test_a_batch_of_large_tasks_is_predicted_in_parts_that_fit_the_memory(clouds, monkeypatch):
    tasks, _ = EpisodeSampler(clouds(D), 4, 3, 5, seed=0).draw(7)
    method = make(n_test_steps=2)
    alone, together = largest_array(method, tasks.select(slice(0, 1))), largest_array(method, tasks)
    monkeypatch.setitem(ove_gp._LARGEST, "cpu", 2 * alone)
    assert largest_array(method, tasks) == 2 * alone < together
    method.seed(3)
    in_parts = method.predict(tasks)
    method.seed(3)
    size = method._tasks_at_once(tasks)
    assert size == 2
    one_by_one = [method.predict(tasks.select(slice(start, start + size))) for start in range(0, 7, size)]
    assert torch.equal(in_parts, torch.cat(one_by_one))


def test_the_tests_of_the_paper_are_one_batch(clouds):
    tasks, _ = EpisodeSampler(clouds(D), 5, 5, 15, seed=0).draw(1)
    assert make(n_chains=20)._tasks_at_once(tasks) >= 64


def test_pl_is_the_cross_entropy_of_predictions_after_the_steps_of_training(drawn):
    tasks, query_y = drawn
    method = make(objective="pl", n_steps=4, n_test_steps=4)
    method.seed(1)
    loss = method.loss(tasks, query_y)
    method.seed(1)
    expected = torch.nn.functional.nll_loss(method.predict(tasks).mT, query_y, reduction="none").mean(1)
    assert_close(loss, expected)


@pytest.mark.parametrize("objective", ["ml", "pl"])
def test_the_gradient_is_that_of_finite_differences_with_the_draws_held(
    drawn, objective, monkeypatch, assert_gradient_in_kernel
):
    tasks, query_y = drawn
    method, made, draw = make(objective=objective, n_steps=3), [], ove.gibbs_pairs
    monkeypatch.setattr(ove, "gibbs_pairs", lambda *a, **k: made[0] if made else made.append(draw(*a, **k)) or made[0])
    assert_gradient_in_kernel(method, tasks, query_y)


def many_chains():
    return make(n_chains=400, n_test_steps=20, kernel_options={"outputscale": 4.0})


def test_predictions_follow_a_renaming_of_the_classes_up_to_the_noise_of_the_chains(drawn):
    tasks, method = drawn[0], many_chains()
    order = torch.tensor([2, 0, 3, 1])
    renamed = method.predict(tasks._replace(support_y=order[tasks.support_y]))
    assert_close(renamed[..., order].exp(), method.predict(tasks).exp(), rtol=0, atol=0.03)


def test_a_batch_is_its_tasks_one_by_one_up_to_the_noise_of_the_chains(drawn):
    tasks, method = drawn[0], many_chains()
    single = torch.cat([method.predict(tasks.select(slice(i, i + 1))) for i in range(2)])
    assert_close(method.predict(tasks).exp(), single.exp(), rtol=0, atol=0.03)


def test_padding_changes_predictions_only_by_the_noise_of_the_chains(drawn):
    tasks, method = drawn[0], many_chains()
    padded = tasks._replace(
        support_x=torch.cat([tasks.support_x, torch.ones(2, 1, D, dtype=torch.float64)], 1),
        support_y=torch.cat([tasks.support_y, torch.zeros(2, 1, dtype=torch.int64)], 1),
        support_weight=torch.cat([tasks.support_weight, torch.zeros(2, 1)], 1),
        n_way=5,
        class_mask=torch.cat([tasks.class_mask, torch.zeros(2, 1, dtype=torch.bool)], 1),
    )
    log_prob = method.predict(padded)
    assert (log_prob[..., 4] == -torch.inf).all()
    assert_close(log_prob[..., :4].exp(), method.predict(tasks).exp(), rtol=0, atol=0.03)


def test_classes_that_do_not_exist_leave_the_gradient_finite(drawn):
    tasks, query_y = drawn
    tasks = tasks._replace(n_way=5, class_mask=torch.cat([tasks.class_mask, torch.zeros(2, 1, dtype=torch.bool)], 1))
    method = make(objective="pl")
    method.loss(tasks, query_y).sum().backward()
    assert method.kernel.log_outputscale.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "cml"}, "'ml' or 'pl' or 'tpl', but got 'cml'.*Use method mirror_gp"),
        ({"n_steps": 0}, "`n_steps` to be at least 1, but got 0"),
        ({"n_test_steps": 0}, "`n_test_steps` to be at least 1, but got 0"),
        ({"n_chains": 0}, "`n_chains` to be at least 1, but got 0"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        make(**options)
