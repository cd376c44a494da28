"""Tasks side by side, as a GPU takes them, and one after the other."""

import pytest
import torch

from mirrorshot.backbones import make_backbone
from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import make_method, per_task
from mirrorshot.methods.per_task import side_by_side


def drawn():
    """Two 3-way tasks of pictures."""
    pictures = torch.randn(30, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    source = ClassSource(pictures, torch.arange(30) % 6, tuple("abcdef"))
    return EpisodeSampler(source, n_way=3, n_shot=2, n_query=2, seed=0).draw(2)


def losses_and_gradients(name, options):
    backbone = make_backbone("conv4s", generator=torch.Generator().manual_seed(1))
    method = make_method(name, backbone, n_way=3, n_steps=2, **options).double()
    method.seed(0)
    tasks, query_y = drawn()
    loss = method.loss(tasks, query_y)
    loss.sum().backward()
    method.seed(0)
    with torch.no_grad():
        prediction = method.predict(tasks)
    return loss.detach(), [p.grad for p in method.parameters()], prediction


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize(("name", "options"), [("maml", {}), ("abml", {"n_samples": 2})])
def test_vmap_gives_the_losses_gradients_and_predictions_of_a_loop(name, options, first_order, monkeypatch):
    options = {**options, "first_order": first_order}
    loss, gradients, prediction = losses_and_gradients(name, options)
    monkeypatch.setattr(per_task, "_is_in_turn", lambda tensor: False)
    same_loss, same_gradients, same_prediction = losses_and_gradients(name, options)
    torch.testing.assert_close(same_loss, loss)
    torch.testing.assert_close(same_prediction, prediction)
    for a, b in zip(same_gradients, gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_slices_of_different_numbers_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        side_by_side(torch.add, torch.zeros(3), torch.zeros(2))
