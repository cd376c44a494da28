"""The first block without its map gives the maps, gradients and statistics of the block with it."""

import pytest
import torch
import torch.nn.functional as F

from mirrorshot.networks import first_block
from mirrorshot.networks.blocks import ConvBlock, can_fuse, fused_block


def _block(n_in: int, padding: int) -> ConvBlock:
    block = ConvBlock(n_in, 8, padding=padding, pool=True, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        block.norm.weight.normal_().sub_(0.3)  # negative ones turn the order of the positions of a window
        block.norm.bias.normal_()
    return block


@pytest.mark.parametrize(("n_in", "side", "padding"), [(3, 12, 1), (1, 9, 1), (3, 11, 0)])
def test_moments_of_patches_replace_the_map_in_the_normalisation(monkeypatch, n_in, side, padding):
    def patch_moments(images, padding):
        patches = F.unfold(images, 3, padding=padding).transpose(0, 1).flatten(1)
        patches = torch.cat([patches, torch.ones_like(patches[:1])])
        return patches @ patches.mT

    def conv_pool_relu(images, weight, bias, padding, dtype):
        maps = F.conv2d(images, weight.view(-1, images.shape[1], 3, 3), bias, padding=padding)
        return F.relu(F.max_pool2d(maps, 2)).to(dtype), None

    monkeypatch.setattr(first_block, "patch_moments", patch_moments)
    monkeypatch.setattr(first_block, "conv_pool_relu", conv_pool_relu)
    torch.manual_seed(0)
    x = torch.randn(4, n_in, side, side, dtype=torch.float64) + 0.5
    plain, fused = _block(n_in, padding), _block(n_in, padding)
    fused.load_state_dict(plain.state_dict())
    expected, maps = plain(x, 1), fused_block(x, fused)
    torch.testing.assert_close(maps, expected)
    direction = torch.randn_like(expected)
    (expected * direction).sum().backward()
    (maps * direction).sum().backward()
    for name in ("conv.weight", "norm.weight", "norm.bias"):
        torch.testing.assert_close(fused.get_parameter(name).grad, plain.get_parameter(name).grad)
    for (name, buffer), other in zip(plain.named_buffers(), fused.buffers(), strict=True):
        torch.testing.assert_close(other, buffer, msg=name)


def test_images_on_the_cpu_take_the_plain_way():
    block = _block(3, 1).train()
    assert not can_fuse(torch.zeros(2, 3, 8, 8), block)


KERNELS = """
import torch
import torch.nn.functional as F
from mirrorshot.networks.first_block import normalised_pool

torch.manual_seed(0)
for n, c, side, padding, d in ((2, 3, 10, 1, 64), (2, 1, 9, 1, 20), (2, 3, 8, 0, 16)):
    x, weight = torch.randn(n, c, side, side) + 0.3, 0.3 * torch.randn(d, c, 3, 3)
    given = weight, torch.randn(d), torch.randn(d)
    exact = [t.double().requires_grad_() for t in given]
    single = [t.clone().requires_grad_() for t in given]
    maps = F.conv2d(x.double(), exact[0], padding=padding)
    expected = F.relu(F.max_pool2d(F.batch_norm(maps, None, None, exact[1], exact[2], True, 0.0, 1e-5), 2))
    found, mean, var = normalised_pool(x, *single, padding, 1e-5, torch.float32)
    assert (found - expected).abs().max() < 1e-5
    assert (mean - maps.mean((0, 2, 3))).abs().max() < 1e-5
    assert (var - maps.var((0, 2, 3), unbiased=False)).abs().max() < 1e-5
    direction = torch.randn_like(expected)
    (expected * direction).sum().backward()
    (found * direction.float()).sum().backward()
    for a, b in zip(exact, single):
        assert (a.grad - b.grad).abs().max() < 1e-5 * a.grad.abs().max()
print("same")
"""


def test_kernels_agree_with_float64_in_tritons_interpreter(in_tritons_interpreter):
    assert in_tritons_interpreter(KERNELS).strip() == "same"
