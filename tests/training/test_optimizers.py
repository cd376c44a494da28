import copy
import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from mirrorshot.training.optimizers import Muon, orthogonalised


def kernels(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def test_steps_are_those_of_torchs_muon_for_matrices():
    ours = kernels((8, 4, 3, 3), (8, 4, 3, 3), (6, 3, 1, 1))
    theirs = [nn.Parameter(p.detach().flatten(1).clone()) for p in ours]
    own = Muon([{"params": ours, "lr": 0.01}])
    reference = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for seed in range(4):
        for p, q, gradient in zip(ours, theirs, kernels(*(p.shape for p in ours), seed=seed + 1), strict=True):
            p.grad, q.grad = gradient.detach().clone(), gradient.detach().flatten(1)
        before = [p.detach().clone() for p in ours]
        own.step()
        reference.step()
        for p, q, start in zip(ours, theirs, before, strict=True):
            step = (p.detach() - start).norm()
            assert (p.detach().flatten(1) - q.detach()).norm() < 0.05 * (seed + 1) * step  # theirs is in bfloat16


@example(11, 11, 121766853)  # a singular value of 0.0012 of the norm, which ends at 0.53
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31))
def test_singular_vectors_are_kept_and_singular_values_made_alike(n, m, seed):
    matrix = torch.randn(1, n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    inner = left.mT @ orthogonalised(matrix) @ right.mT  # diagonal, if the singular vectors are the same
    new = inner.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(inner, torch.diag_embed(new), rtol=0, atol=1e-9)
    large = values > 1.4e-3 * values.norm()
    assert large.any()
    assert ((new[large] > 0.6) & (new[large] < 1.3)).all()


def test_a_batch_of_kernels_moves_as_each_alone():
    together = kernels((5, 2, 3, 3), (5, 2, 3, 3), (4, 1, 3, 3))
    alone = copy.deepcopy(together)
    for p, q in zip(together, alone, strict=True):
        p.grad = torch.ones_like(p) * p.detach().cos()
        q.grad = p.grad.clone()
    Muon([{"params": together, "lr": 0.1}]).step()
    for q in alone:
        Muon([{"params": [q], "lr": 0.1}]).step()
    for p, q in zip(together, alone, strict=True):
        torch.testing.assert_close(p, q)


def test_a_step_does_not_depend_on_the_length_of_the_gradient():
    one, other = kernels((4, 3, 3, 3)), kernels((4, 3, 3, 3))
    one[0].grad, other[0].grad = one[0].detach().sin(), 1e-3 * one[0].detach().sin()
    for p in (*one, *other):
        Muon([{"params": [p], "lr": 0.1}]).step()
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)


def test_a_gradient_of_zeros_moves_nothing_and_no_gradient_is_left_out():
    still, absent = kernels((4, 3, 3, 3), (4, 3, 3, 3))
    before = [still.detach().clone(), absent.detach().clone()]
    still.grad = torch.zeros_like(still)
    Muon([{"params": [still, absent], "lr": 0.1}]).step()
    assert torch.equal(still, before[0])
    assert torch.equal(absent, before[1])


def test_a_learning_rate_that_is_a_tensor_can_change_between_steps():
    (p,) = kernels((4, 3, 3, 3))
    rate = torch.tensor(0.1)
    muon = Muon([{"params": [p], "lr": rate}])
    lengths = []
    for factor in (1.0, 0.5):
        rate.copy_(torch.tensor(0.1 * factor))
        p.grad, before = torch.ones_like(p) + p.detach(), p.detach().clone()
        muon.step()
        lengths.append(float((p.detach() - before).norm()))
    assert lengths[1] == pytest.approx(0.5 * lengths[0], rel=0.3)
    assert lengths[0] == pytest.approx(0.1 * 0.2 * math.sqrt(27) * 2, rel=0.3)
