"""What every method promises, for all entries of `METHODS`."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import METHODS, FewShotMethod, make_method, method_options
from mirrorshot.networks.backbones import Backbone, make_backbone
from mirrorshot.types import InvalidInputError

D = 6
VARIANTS = [(name, {}) for name in METHODS] + [
    ("mirror_gp", {"objective": "cml"}),
    ("mirror_gp", {"objective": "pl"}),
    ("mirror_gp", {"objective": "tpl"}),
    ("mirror_gp", {"kernel": "rbf", "start": "amortised", "n_steps": 1, "step_size": 0.7}),
    ("mirror_gp", {"kernel": "polynomial", "kernel_options": {"power": 1}}),
    ("mirror_gp", {"kernel": "cosine", "kernel_options": {"centre": True}}),
    ("gd_gp", {"objective": "cml"}),
    ("gd_gp", {"form": "plain", "step_size": 0.001}),
    ("relationnet", {"loss": "softmax"}),
    ("maml", {"first_order": True}),
    ("maml", {"transductive": False}),
    ("dkt", {"objective": "cml"}),
    ("logistic_softmax_gp", {"objective": "pl"}),
    ("ove_gp", {"objective": "pl"}),
]
# why a promise does not hold for a method, or for one option of it
INDEPENDENT_DRAWS = {  # each point of each task and class has random numbers of its own
    "ove_gp": "each chain has draws of its own; its own tests compare many chains",
}
NOT_EQUIVARIANT = {  # a head that is learned for each class slot
    "bayesian_maml": "the particles of the head are learned for each slot",
    "bayesian_maml_chaser": "the particles of the head are learned for each slot",
    "abml": "the prior of the head is learned for each slot",
    "feature_transfer": "the head of each class starts from random weights of its slot",
    "baseline_pp": "the head of each class starts from random weights of its slot",
    "maml": "the head is learned for each slot",
    **INDEPENDENT_DRAWS,
}
SUPPORT_ORDER_MATTERS = {
    "feature_transfer": "mini-batches of the descent take the support in a drawn order",
    "baseline_pp": "mini-batches of the descent take the support in a drawn order",
    "matchingnet": "an LSTM reads the support in its order",
    **INDEPENDENT_DRAWS,
}
NOT_FROM_FEATURES = {}  # cannot be trained through the linear backbone of these tests
PADDING_MATTERS = {
    "relationnet": "in train mode its normalisation counts padding, as backbones do; its own test has eval mode",
    "maml": "it has the classes of its head; its own test pads to these",
    **INDEPENDENT_DRAWS,
}
QUICK = {  # longer and fewer steps than the references', for the short training of these tests
    "bayesian_maml": {"step_size": 0.1},
    "bayesian_maml_chaser": {"step_size": 0.1, "leader_step_size": 0.05},
    "abml": {"step_size": 0.5, "kl_weight": 0.001, "n_samples": 2, "n_steps": 3},
    "feature_transfer": {"n_passes": 30, "lr": 0.05},
    "baseline_pp": {"n_passes": 30, "lr": 0.05},
    "simpleshot": {"temperature": 0.5},  # one that is fitted to three tasks, as there, is mostly noise
    "maml": {"step_size": 0.5},
}
every_method = pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=[f"{name}-{'-'.join(map(str, options.values()))}" for name, options in VARIANTS]
)


class Layer(Backbone):
    """One linear layer as a backbone."""

    def __init__(self, seed=0):
        super().__init__((D,))
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(D, D, generator=generator, dtype=torch.float64) / D**0.5)

    def forward(self, x):
        return x @ self.weight


class MapLayer(Layer):
    """The same features at every place of a map."""

    def __init__(self):
        super().__init__()
        self.out_features, self.out_shape = 16 * D, (D, 4, 4)

    def forward(self, x):
        return super().forward(x)[..., None, None].expand(*x.shape[:2], *self.out_shape)


def make(name, options):
    known = method_options(name)
    given = {key: value for key, value in {"n_way": 4, "n_base_classes": 8}.items() if key in known}
    layer = MapLayer() if getattr(METHODS[name], "needs_maps", False) else Layer()
    return make_method(name, layer, **{**given, **QUICK.get(name, {}), **options}).double()


def seeded(method):
    """The method with the same random numbers ahead, which it would otherwise draw anew at every call."""
    method.seed(0)
    return method


def clouds(n_classes=8, n=12, spread=0.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(n_classes, 1, D, generator=generator, dtype=torch.float64)
    x = centres + spread * torch.randn(n_classes, n, D, generator=generator, dtype=torch.float64)
    return ClassSource.from_arrays(x.reshape(-1, D), torch.arange(n_classes).repeat_interleave(n))


def draw(n_tasks=3, n_way=4, n_shot=2, n_query=3, seed=0, **options):
    return EpisodeSampler(clouds(**options), n_way, n_shot, n_query, seed=seed).draw(n_tasks)


@every_method
def test_probabilities_sum_to_one(name, options):
    tasks, _ = draw()
    log_prob = make(name, options).predict(tasks)
    assert log_prob.shape == (3, 12, 4)
    assert torch.allclose(log_prob.exp().sum(-1), torch.ones(3, 12, dtype=torch.float64))


@every_method
def test_the_loss_has_one_finite_value_per_task_and_a_gradient_in_the_network(name, options):
    tasks, query_y = draw()
    method = make(name, options)
    loss = method.loss(tasks, query_y)
    loss.sum().backward()
    assert loss.shape == (3,)
    assert loss.isfinite().all()
    gradient = method.backbone.weight.grad
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 1e-8


@every_method
def test_a_batch_of_tasks_is_its_tasks_one_by_one(name, options):
    if name in INDEPENDENT_DRAWS:
        pytest.skip(INDEPENDENT_DRAWS[name])
    method, (tasks, query_y) = make(name, options), draw()
    single = [tasks.select(slice(i, i + 1)) for i in range(3)]
    one_by_one = torch.cat([seeded(method).predict(task) for task in single])
    assert torch.allclose(seeded(method).predict(tasks), one_by_one, atol=1e-5)
    losses = torch.cat([seeded(method).loss(task, query_y[i : i + 1]) for i, task in enumerate(single)])
    assert torch.allclose(seeded(method).loss(tasks, query_y), losses, atol=1e-5)


@every_method
def test_permuting_the_classes_permutes_the_columns(name, options):
    if name in NOT_EQUIVARIANT:
        pytest.skip(NOT_EQUIVARIANT[name])
    tasks, query_y = draw()
    method = make(name, options)
    order = torch.tensor([2, 0, 3, 1])
    renamed = tasks._replace(support_y=order[tasks.support_y])
    assert torch.allclose(method.predict(renamed)[..., order], method.predict(tasks), atol=1e-5)
    assert torch.allclose(method.loss(renamed, order[query_y]), method.loss(tasks, query_y), atol=1e-5)


@every_method
def test_the_order_of_the_support_does_not_matter(name, options):
    if name in SUPPORT_ORDER_MATTERS:
        pytest.skip(SUPPORT_ORDER_MATTERS[name])
    tasks, _ = draw()
    order = torch.tensor([3, 0, 7, 5, 2, 6, 1, 4])
    shuffled = tasks._replace(support_x=tasks.support_x[:, order], support_y=tasks.support_y[:, order])
    method = make(name, options)
    method.seed(0)
    expected = method.predict(tasks)
    method.seed(0)
    assert torch.allclose(method.predict(shuffled), expected, atol=1e-5)


@every_method
def test_the_same_seed_gives_the_same_result(name, options):
    tasks, query_y = draw()
    method = make(name, options)
    results = []
    for _ in range(2):
        method.seed(7)
        results.append((method.loss(tasks, query_y), method.predict(tasks)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_seed_leaves_the_generator_which_a_recorded_step_draws_from():
    method = make("ove_gp", {})
    generator = method.generator
    first = torch.rand(2, generator=generator)
    method.seed(0)
    assert method.generator is generator
    assert torch.equal(torch.rand(2, generator=generator), first)


class Looking(TorchDispatchMode):
    """Operations that make the host wait for a GPU, as they are called."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.found |= {name} & {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}
        return function(*args, **(kwargs or {}))


STOCHASTIC = [
    ("abml", {}),
    ("ove_gp", {}),
    ("ove_gp", {"objective": "pl"}),
    ("logistic_softmax_gp", {"inference": "gibbs"}),
]


@pytest.mark.parametrize(("name", "options"), STOCHASTIC)
def test_a_stochastic_method_draws_without_looking_so_that_its_step_can_be_recorded(name, options):
    tasks, query_y = draw()
    method = make(name, options)
    with Looking() as looking:
        method.loss(tasks, query_y).sum().backward()
    assert method.is_recordable(20, 4)
    assert looking.found == set()


@every_method
def test_padding_changes_nothing(name, options):
    if name in PADDING_MATTERS:
        pytest.skip(PADDING_MATTERS[name])
    if options.get("form") == "plain":
        pytest.skip("the plain form of gradient descent needs a positive definite prior at padded points too")
    tasks, query_y = draw()
    method = make(name, options)
    padded, padded_y = _pad(tasks, query_y)
    log_prob = seeded(method).predict(padded)
    assert torch.allclose(log_prob[:, :12, :4], seeded(method).predict(tasks), atol=1e-5)
    assert (log_prob[..., 4] == -torch.inf).all()
    if not name.startswith("gd"):  # a padded point has variance under the prior of gd_gp, and its KL
        losses = seeded(method).loss(padded, padded_y), seeded(method).loss(tasks, query_y)
        assert torch.allclose(*losses, atol=1e-5)


def _pad(tasks, query_y):
    """One more class and one more point in support and query, none of them real."""
    item, zero = torch.zeros(3, 1, D, dtype=torch.float64), torch.zeros(3, 1)
    label = torch.zeros(3, 1, dtype=torch.int64)
    return tasks._replace(
        support_x=torch.cat([tasks.support_x, item], 1),
        support_y=torch.cat([tasks.support_y, label], 1),
        query_x=torch.cat([tasks.query_x, item], 1),
        n_way=5,
        support_weight=torch.cat([tasks.support_weight, zero], 1),
        query_weight=torch.cat([tasks.query_weight, zero], 1),
        class_mask=torch.cat([tasks.class_mask, zero.bool()], 1),
    ), torch.cat([query_y, label], 1)


@every_method
def test_clear_classes_are_recognised_after_training_and_the_loss_falls(name, options):
    method = make(name, options)
    groups = [{"params": p, "lr": 0.02} for p in method.parameter_groups().values() if p]
    adam = torch.optim.Adam(groups)
    losses = []
    for seed in range(40):
        tasks, query_y = draw(seed=seed, spread=1.0)
        if seed % 10 == 0:
            method.tune(tasks, query_y)
        adam.zero_grad()
        loss = method.loss(tasks, query_y).mean()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < sum(losses[:10])
    tasks, query_y = draw(n_tasks=10, seed=99, spread=0.2)
    assert (method.predict(tasks).argmax(-1) == query_y).double().mean() > 0.9


@every_method
def test_every_parameter_has_a_learning_rate(name, options):
    method = make(name, options)
    grouped = [p for parameters in method.parameter_groups().values() for p in parameters]
    assert {id(p) for p in grouped} == {id(p) for p in method.parameters()}
    assert len(grouped) == len(list(method.parameters()))


@every_method
def test_a_method_is_its_state(name, options):
    tasks, query_y = draw()
    method, twin = make(name, options), make(name, options)
    with torch.no_grad():
        method.backbone.weight.add_(0.1)
    method.tune(tasks, query_y)
    twin.load_state_dict(method.state_dict())
    assert torch.equal(seeded(method).predict(tasks), seeded(twin).predict(tasks))


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_option_is_refused_with_the_known_ones(name):
    with pytest.raises(InvalidInputError, match="but got colour"):
        make_method(name, make_backbone("identity", in_features=D), colour=3)


@pytest.mark.parametrize("name", METHODS)
def test_options_are_those_of_the_constructor(name):
    is_maps = getattr(METHODS[name], "needs_maps", False)
    backbone = MapLayer() if is_maps else make_backbone("identity", in_features=D)
    needed = {"n_base_classes": 8} if "n_base_classes" in method_options(name) else {}
    method = make_method(name, backbone, **{**method_options(name), **needed})
    assert isinstance(method, FewShotMethod)
    assert type(method).__mro__[0].__doc__


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(("name", "options", "message"), [
    ("maml", {"step_size": "abc"}, "'step_size' of 'maml' to be a number, but got 'abc'"),
    ("mirror_gp", {"n_steps": 2.5}, "'n_steps' of 'mirror_gp' to be a whole number, but got 2.5"),
    ("maml", {"n_steps": True}, "a whole number, but got True"),
    ("maml", {"first_order": 1}, "true or false, but got 1"),
])  # fmt: skip
def test_an_option_of_another_type_is_refused(name, options, message):
    with pytest.raises(InvalidInputError, match=message):
        make_method(name, make_backbone("identity", in_features=4), **options)
    make_method("maml", make_backbone("identity", in_features=4), step_size=1, first_order=True)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInputError, match=r"one of mirror_gp, .*but got 'protonet3'"):
        make_method("protonet3", make_backbone("identity", in_features=D))
