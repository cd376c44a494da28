import math
from typing import Literal

import pytest
import torch

from mirrorshot.methods.shared import (
    check_choice,
    check_positive,
    class_log_prob,
    linear_layer,
    mean_nll,
    mean_of_softmax,
    xavier_rows,
)
from mirrorshot.types import InvalidInputError, check_at_least

MASK = torch.tensor([[True, True, False], [True, True, True]])


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("check", "options", "message"),
    [
        (check_at_least, {"low": 2, "n_way": 1}, "`n_way` to be at least 2, but got 1"),
        (check_positive, {"lr": 0.0}, "`lr` to be positive, but got 0.0"),
        (check_positive, {"lr": math.inf}, "`lr` to be positive, but got inf"),
        (check_positive, {"lr": math.nan}, "`lr` to be positive, but got nan"),
        (check_choice, {"choices": Literal["a", "b"], "x": "c"}, "`x` to be 'a' or 'b', but got 'c'"),
        (check_choice, {"choices": Literal["a", "b", "c"], "x": "d"}, "`x` to be 'a', 'b' or 'c', but got 'd'"),
    ],
)
def test_wrong_options_are_named_with_the_values_allowed(check, options, message):
    with pytest.raises(InvalidInputError, match=message):
        check(**options)


def test_good_options_pass():
    check_at_least(1, n_steps=1, n_samples=7)
    check_positive(lr=0.1, n_chains=3)
    check_choice(Literal["a", "b"], x="b")


@pytest.mark.parametrize("n_slots", [3, 4])
def test_the_mean_of_softmaxes_is_that_of_probabilities_of_the_classes(n_slots):
    logits = torch.randn(2, 5, 7, n_slots, generator=generator(), dtype=torch.float64)
    used = torch.nn.functional.pad(MASK, (0, n_slots - 3))
    found = mean_of_softmax(logits, used, MASK)
    for t, n_classes in enumerate((2, 3)):
        expected = logits[t, ..., :n_classes].softmax(-1).mean(0)
        torch.testing.assert_close(found[t, :, :n_classes].exp(), expected)
        assert (found[t, :, n_classes:] == -torch.inf).all()


def test_probabilities_are_normalised_over_the_classes_of_the_task():
    found = class_log_prob(torch.full((2, 3, 4), 0.5), MASK).exp()
    torch.testing.assert_close(found[0, 0], torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(found[1, 0], torch.full((3,), 1 / 3))


def test_padding_does_not_count_in_the_mean_nll():
    log_prob = torch.tensor([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]).log()
    found = mean_nll(log_prob, torch.tensor([0, 0, 1]), torch.tensor([1.0, 1.0, 0.0]))
    assert found.item() == pytest.approx(1.5 * math.log(2))


def test_initial_weights_come_from_the_generator_alone():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    layer, same = (linear_layer(100, 3, generator(), zero_bias=True) for _ in range(2))
    assert torch.equal(layer.weight, same.weight)
    assert layer.weight.abs().max() <= 0.1
    assert layer.weight.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.1)
    assert not layer.bias.any()
    assert linear_layer(100, 3, generator()).bias.any()
    rows = xavier_rows(40, n_way=5, n_features=95, generator=generator())
    assert rows[..., :-1].std().item() == pytest.approx(math.sqrt(2 / 100), rel=0.1)
    assert not rows[..., -1].any()
    assert torch.equal(state, torch.get_rng_state())
