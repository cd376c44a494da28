import pytest
import torch
from torch import nn

from mirrorshot.networks.backbones import BACKBONES, make_backbone
from mirrorshot.networks.blocks import TaskBatchNorm2d, hold_subtracted_biases
from mirrorshot.types import InvalidInputError

SHAPES = {  # input of one image, output of one image
    "conv4": ((3, 84, 84), (1600,)),
    "conv4s": ((1, 28, 28), (64,)),
    "conv4np": ((3, 84, 84), (64, 19, 19)),
    "conv4snp": ((1, 28, 28), (64, 5, 5)),
    "resnet10": ((3, 84, 84), (512,)),
    "resnet12": ((3, 84, 84), (640,)),
    "resnet18": ((3, 84, 84), (512,)),
}
SMALL = {"conv4s": 28, "conv4snp": 28, "resnet10": 32, "resnet12": 16}  # name, image size


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make(name, seed=0, **options):
    return make_backbone(name, generator=generator(seed), **options)


def images(name, *shape, seed=1):
    size = (SHAPES[name][0][0], SMALL[name], SMALL[name])
    scale = 1 + torch.arange(shape[0])[:, None, None, None, None]  # tasks with other statistics
    return scale * torch.randn(*shape, *size, generator=generator(seed))


def randomise(backbone, seed=2):
    """Parameters and buffers of the norms as after some training."""
    g = generator(seed)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=g)
            module.bias.data.normal_(0, 0.3, generator=g)
            module.running_mean.normal_(0, 0.3, generator=g)
            module.running_var.uniform_(0.5, 1.5, generator=g)
    return backbone


def n_parameters(name, **options):
    return sum(p.numel() for p in make(name, **options).parameters())


def block_parameters(n_in, n_out, size=3, bias=0):
    """Weights of the convolution, its bias, weight and bias of the norm."""
    return size**2 * n_in * n_out + bias * n_out + 2 * n_out


@pytest.mark.parametrize("name", SHAPES)
def test_images_become_features_of_the_stated_size(name):
    image, features = SHAPES[name]
    backbone = make(name).eval()
    with torch.no_grad():
        z = backbone(torch.zeros(2, 1, *image))
    assert z.shape == (2, 1, *features)
    assert backbone.out_shape == features
    assert backbone.out_features == z[0, 0].numel()


def test_every_backbone_is_tested():
    assert set(BACKBONES) == {*SHAPES, "identity"}


@pytest.mark.parametrize("name", SMALL)
def test_averaged_flips_make_features_that_do_not_see_which_side_is_shown(name):
    backbone, x = randomise(make(name)).eval(), images(name, 2, 3)
    with torch.no_grad():
        plain, mirrored = backbone(x), backbone(x.flip(-1))
        backbone.average_flips = True
        averaged = backbone(x)
        torch.testing.assert_close(averaged, (plain + mirrored) / 2)
        torch.testing.assert_close(backbone(x.flip(-1)), averaged)
        assert not torch.allclose(plain, mirrored, rtol=0.01)
        torch.testing.assert_close(backbone.one_view(x), plain)
        backbone.train()
        torch.testing.assert_close(backbone(x), randomise(make(name)).train()(x))  # training sees one side


def test_resnets_take_images_of_other_sizes():
    for name in ("resnet10", "resnet12"):
        backbone = make(name, in_channels=1).eval()
        assert backbone(torch.zeros(1, 1, 1, 40, 56)).shape == (1, 1, backbone.out_features)


def test_conv4_takes_another_image_size():
    backbone = make("conv4", image_size=32)
    assert backbone(torch.zeros(1, 2, 3, 32, 32)).shape == (1, 2, 256)


def test_identity_returns_the_embeddings():
    x = torch.randn(2, 3, 7, generator=generator())
    backbone = make("identity", in_features=7, norm="task")
    assert backbone(x) is x
    assert backbone.out_features == 7
    assert list(backbone.parameters()) == []


def test_conv4_has_the_parameters_of_its_layers():
    first, others = block_parameters(3, 64, bias=1), 3 * block_parameters(64, 64, bias=1)
    assert n_parameters("conv4") == first + others == 113_088
    assert n_parameters("conv4np") == first + others
    assert n_parameters("conv4s") == n_parameters("conv4") - 2 * 9 * 64


def test_resnets_have_the_parameters_of_their_layers():
    widths = [(64, 128), (128, 256), (256, 512)]
    first = [block_parameters(a, b) + block_parameters(b, b) + block_parameters(a, b, 1) for a, b in widths]
    resnet10 = block_parameters(3, 64, 7) + 2 * block_parameters(64, 64) + sum(first)
    more = 2 * sum(block_parameters(c, c) for c in (64, 128, 256, 512))
    assert n_parameters("resnet10") == resnet10
    assert n_parameters("resnet18") == resnet10 + more == 11_176_512  # torchvision's, without the classifier
    widths = [(3, 64), (64, 160), (160, 320), (320, 640)]
    twelve = [block_parameters(a, b) + 2 * block_parameters(b, b) + block_parameters(a, b, 1) for a, b in widths]
    assert n_parameters("resnet12") == sum(twelve)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("train", [True, False])
def test_with_task_norm_a_batch_of_tasks_is_its_tasks_one_by_one(name, train, memory_format):
    x = images(name, 3, 4).double()
    backbone = randomise(make(name, norm="task")).double().train(train).to(memory_format=memory_format)
    single = torch.cat([backbone(task[None]) for task in x])
    torch.testing.assert_close(backbone(x), single)


def test_gradients_with_task_norm_are_those_of_the_tasks_one_by_one():
    x = images("conv4s", 3, 4).double()
    backbone = randomise(make("conv4s", norm="task")).double()
    target = torch.randn(3, 4, 64, generator=generator(3), dtype=torch.float64)
    batched = torch.autograd.grad((backbone(x) * target).sum(), list(backbone.parameters()))
    looped = sum((backbone(task[None]) * t[None]).sum() for task, t in zip(x, target, strict=True))
    for one, other in zip(batched, torch.autograd.grad(looped, list(backbone.parameters())), strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-6)


def test_a_bias_that_the_norm_subtracts_is_held_and_has_no_gradient():
    backbone = make("conv4s").double()
    loss = backbone(images("conv4s", 1, 6).double()).square().sum()
    slopes = torch.autograd.grad(loss, [block.conv.bias for block in backbone.blocks])
    assert max(slope.abs().max() for slope in slopes) < 1e-10
    hold_subtracted_biases(backbone)
    held = {key for key, weight in backbone.named_parameters() if not weight.requires_grad}
    assert held == {f"blocks.{i}.conv.bias" for i in range(4)}


def test_norms_differ_for_many_tasks_in_train_mode_only():
    x = images("conv4s", 3, 4)
    episode, task = (randomise(make("conv4s", norm=norm)) for norm in ("episode", "task"))
    torch.testing.assert_close(episode.eval()(x), task.eval()(x))
    assert (episode.train()(x) - task.train()(x)).abs().max() > 0.1


def plain_conv4s(backbone):
    """The network of METHODS section 2 from torch's own layers, with the weights of `backbone`."""
    layers = []
    for i, block in enumerate(backbone.blocks):
        conv, norm = nn.Conv2d(64 if i else 1, 64, 3, padding=1), nn.BatchNorm2d(64, eps=1e-5, momentum=0.1)
        conv.load_state_dict(block.conv.state_dict())
        norm.load_state_dict(block.norm.state_dict())
        layers += [conv, norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten()).double()


@pytest.mark.parametrize("n_tasks", [1, 3])
def test_episode_norm_is_a_plain_network_of_torch_layers(n_tasks):
    x = images("conv4s", n_tasks, 5).double()
    backbone = randomise(make("conv4s")).double()
    plain = plain_conv4s(backbone)
    z, expected = backbone(x), plain(x.flatten(0, 1)).reshape(n_tasks, 5, 64)
    torch.testing.assert_close(z, expected)
    for loss in (z, expected):
        (loss * torch.linspace(-1, 1, 64)).sum().backward()
    for p, q in zip(backbone.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(backbone.eval()(x), plain.eval()(x.flatten(0, 1)).reshape(n_tasks, 5, 64))


def layer(part, x, **options):
    """Convolution and batch normalisation by torch's functions, with the weights of `part`."""
    maps = nn.functional.conv2d(x, part.conv.weight, **options)
    return nn.functional.batch_norm(maps, None, None, part.norm.weight, part.norm.bias, training=True)


def test_resnet12_is_its_formula():
    backbone = randomise(make("resnet12")).double()
    maps, leaky = images("resnet12", 1, 3).double()[0], nn.LeakyReLU(0.1)
    z = backbone(maps[None])
    for block in backbone.blocks:
        out = maps
        for i, conv in enumerate(block.convs):
            out = layer(conv, leaky(out) if i else out, padding=1)
        maps = nn.functional.max_pool2d(leaky(out + layer(block.shortcut, maps)), 2)
    torch.testing.assert_close(z, maps.mean((2, 3))[None])


@pytest.mark.parametrize("n_blocks", [1, 2])
def test_resnet10_and_resnet18_are_their_formula(n_blocks):
    backbone = randomise(make({1: "resnet10", 2: "resnet18"}[n_blocks])).double()
    maps, relu = images("resnet10", 1, 4).double()[0], nn.functional.relu
    z = backbone(maps[None])
    stem, *blocks = backbone.blocks
    maps = nn.functional.max_pool2d(relu(layer(stem, maps, stride=2, padding=3)), 3, 2, 1)
    for i, block in enumerate(blocks):
        stride = 2 if i and i % n_blocks == 0 else 1  # the first block of a stage halves the map, but for stage one
        one, two = block.convs
        out = layer(two, relu(layer(one, maps, stride=stride, padding=1)), padding=1)
        maps = relu(out + (layer(block.shortcut, maps, stride=stride) if stride == 2 else maps))
    torch.testing.assert_close(z, maps.mean((2, 3))[None])


def test_running_statistics_move_to_the_mean_over_tasks():
    x = images("conv4s", 3, 5).flatten(0, 1)
    norm = TaskBatchNorm2d(1, momentum=0.25)
    norm(x, n_tasks=3)
    tasks = x.reshape(3, -1)
    torch.testing.assert_close(norm.running_mean, 0.25 * tasks.mean(1).mean()[None])
    torch.testing.assert_close(norm.running_var, 0.75 + 0.25 * tasks.var(1).mean()[None])
    assert norm.num_batches_tracked == 1


def test_running_statistics_stay_in_eval_mode():
    backbone = make("conv4s", norm="task").eval()
    before = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
    backbone(images("conv4s", 2, 3))
    for name, buffer in backbone.named_buffers():
        assert torch.equal(buffer, before[name])


@pytest.mark.parametrize("name", SMALL)
def test_weights_come_from_the_generator_alone(name):
    state = torch.get_rng_state()
    one, same, other = make(name, 0).state_dict(), make(name, 0).state_dict(), make(name, 1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    for key in one:
        assert torch.equal(one[key], same[key])
        if "conv" in key and key.split(".")[-2] == "conv":
            assert not torch.equal(one[key], other[key])


def test_initial_weights_are_those_of_the_references():
    for block in make("conv4").blocks:
        assert block.conv.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.06)
        assert abs(block.conv.weight.mean().item()) < 0.006
        bound = (9 * block.conv.in_channels) ** -0.5
        assert 0.8 * bound < block.conv.bias.abs().max().item() <= bound
        assert (block.norm.weight == 1).all()
        assert (block.norm.bias == 0).all()
    stem = make("resnet10").blocks[0].conv
    assert stem.weight.std().item() == pytest.approx((2 / (49 * 64)) ** 0.5, rel=0.06)
    assert stem.bias is None


@pytest.mark.parametrize("norm", ["episode", "task"])
@pytest.mark.parametrize("name", SMALL)
def test_gradients_reach_every_parameter(name, norm):
    backbone = make(name, norm=norm)
    z = backbone(images(name, 2, 4))
    (z * torch.randn(z.shape, generator=generator(5))).sum().backward()
    for key, parameter in backbone.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        if not key.endswith("conv.bias"):  # batch normalisation takes it away
            assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("norm", ["episode", "task"])
def test_half_precision_is_close_to_full(norm):
    x = images("conv4s", 2, 5)
    backbone = make("conv4s", norm=norm)
    with torch.autocast("cpu", torch.bfloat16):
        half = backbone(x)
    half.float().sum().backward()
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), backbone(x), atol=0.1, rtol=0.1)
    assert all(b.dtype != torch.bfloat16 for b in backbone.buffers())


def test_task_norm_keeps_the_memory_format():
    x = torch.randn(6, 4, 5, 3, generator=generator())
    norm = TaskBatchNorm2d(4)
    last = norm(x.contiguous(memory_format=torch.channels_last), n_tasks=3)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert norm(x, n_tasks=3).is_contiguous()
    torch.testing.assert_close(last, norm(x, n_tasks=3))


def test_weights_survive_saving_and_the_change_of_norm():
    one, other = randomise(make("conv4s", norm="task")).eval(), make("conv4s", seed=1, norm="episode").eval()
    other.load_state_dict(one.state_dict())
    x = images("conv4s", 2, 3)
    assert torch.equal(one(x), other(x))


def test_unknown_names_are_listed():
    with pytest.raises(InvalidInputError, match=r"one of conv4, conv4s, .*identity, but got 'vgg'"):
        make_backbone("vgg")


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("name", "x", "message"),
    [
        ("conv4s", torch.zeros(1, 2, 3, 28, 28), r"\(T, N, 1, 28, 28\), but got .*\(1, 2, 3, 28, 28\).*drop channels"),
        ("conv4s", torch.zeros(1, 2, 1, 28, 32), r"\(T, N, 1, 28, 28\), but got .*\(1, 2, 1, 28, 32\)\. Resize"),
        ("conv4s", torch.zeros(2, 1, 28, 28), r"\(T, N, 1, 28, 28\), but got .*\(2, 1, 28, 28\)"),
        ("conv4s", torch.zeros(28), r"\(T, N, 1, 28, 28\), but got .*\(28,\)"),
        ("conv4s", torch.zeros(1, 2, 1, 28, 28, dtype=torch.uint8), r"floating-point images .* got torch\.uint8"),
        ("conv4s", torch.zeros(1, 0, 1, 28, 28), r"but got .*\(1, 0, 1, 28, 28\)"),
        ("resnet12", torch.zeros(1, 2, 3, 15, 20), r"\(T, N, 3, 16, 16\) or larger, but got .*\(1, 2, 3, 15, 20\)"),
    ],
)
def test_images_that_do_not_fit_are_explained(name, x, message):
    with pytest.raises(InvalidInputError, match=message):
        make(name)(x)


@pytest.mark.usefixtures("as_for_users")
def test_options_that_make_no_sense_are_explained():
    with pytest.raises(InvalidInputError, match="'episode' or 'task', but got 'batch'"):
        make("conv4s", norm="batch")
    with pytest.raises(InvalidInputError, match="`image_size` to be at least 16, but got 15"):
        make("conv4", image_size=15)
    with pytest.raises(InvalidInputError, match="`image_size` to be at least 10, but got 9"):
        make("conv4np", image_size=9)
    with pytest.raises(InvalidInputError, match=r"shape \(T, N, 8\), but got .*\(2, 3, 7\)"):
        make("identity", in_features=8)(torch.zeros(2, 3, 7))
    with pytest.raises(InvalidInputError, match="multiple of `n_tasks`=3 maps, but got 4"):
        TaskBatchNorm2d(1)(torch.zeros(4, 1, 2, 2), n_tasks=3)
