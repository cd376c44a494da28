import copy
import sys

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import kernels as sk
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from mirrorshot.gp.kernels import (
    FAMILIES,
    KERNELS,
    RBF,
    Cosine,
    GPyTorchKernel,
    Kernel,
    Linear,
    Matern,
    Polynomial,
    Product,
    Sum,
    TrainableKernel,
    make_kernel,
)
from mirrorshot.gp.kernels.features import as_features, squared_distance
from mirrorshot.types import InvalidInputError

BUILDERS = {
    "cosine": lambda **o: Cosine(**o),
    "centred cosine": lambda **o: Cosine(centre=True, **o),
    "rbf": lambda **o: RBF(lengthscale=0.8, **o),
    "normalised rbf": lambda **o: RBF(lengthscale=0.7, centre=True, normalise=True, **o),
    "matern 1/2": lambda **o: Matern(nu=0.5, lengthscale=1.3, **o),
    "matern 3/2": lambda **o: Matern(nu=1.5, lengthscale=1.3, **o),
    "matern 5/2": lambda **o: Matern(nu=2.5, lengthscale=1.3, **o),
    "linear": lambda **o: Linear(**o),
    "polynomial 1": lambda **o: Polynomial(power=1, **o),
    "polynomial 3": lambda **o: Polynomial(power=3, offset=0.5, **o),
    "sum": lambda **o: RBF(**o) + Linear(),
    "product": lambda **o: Matern(nu=1.5, **o) * (Cosine(centre=True) + Polynomial(power=2)),
}
STATIONARY = [(RBF, {}), (Matern, {"nu": 0.5}), (Matern, {"nu": 1.5}), (Matern, {"nu": 2.5})]
SMOOTH = [name for name in BUILDERS if name != "matern 1/2"]
any_kernel = pytest.mark.parametrize("name", BUILDERS)


def build(name: str, **options: object) -> TrainableKernel:
    return TrainableKernel(BUILDERS[name](outputscale=2.5, **options)).double()


def features(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def batches(draw: st.DrawFn) -> Tensor:
    """Features of a batch of tasks, some with an offset, duplicated points or zero vectors."""
    T, N, D = draw(st.integers(1, 3)), draw(st.integers(1, 8)), draw(st.integers(1, 6))
    x = draw(st.sampled_from([1e-3, 1.0, 30.0])) * features(T, N, D, seed=draw(st.integers(0, 10**6)))
    x = x + draw(st.sampled_from([0.0, 0.0, 5.0]))
    if draw(st.booleans()):
        x = torch.cat([x, x[:, :2]], 1)
    if draw(st.booleans()):
        x = torch.cat([x, torch.zeros_like(x[:, :1])], 1)
    return x


# --- against other libraries ---


@pytest.mark.parametrize(
    ("kernel", "reference"),
    [
        (RBF(outputscale=2.5, lengthscale=0.7), 2.5 * sk.RBF(0.7)),
        (Matern(nu=0.5, outputscale=2.5, lengthscale=0.7), 2.5 * sk.Matern(0.7, nu=0.5)),
        (Matern(nu=1.5, outputscale=2.5, lengthscale=0.7), 2.5 * sk.Matern(0.7, nu=1.5)),
        (Matern(nu=2.5, outputscale=2.5, lengthscale=0.7), 2.5 * sk.Matern(0.7, nu=2.5)),
        (Linear(outputscale=2.5), 2.5 * sk.DotProduct(sigma_0=0.0)),
        (
            Polynomial(power=3, outputscale=2.5, offset=0.49),
            2.5 * sk.DotProduct(sigma_0=0.7) ** 3,
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, sk.Kernel) else "",
)
def test_kernel_equals_the_one_of_scikit_learn(kernel: Kernel, reference: sk.Kernel) -> None:
    x, z = features(1, 6, 3), features(1, 4, 3, seed=1)
    torch.testing.assert_close(kernel(x)[0, 0], torch.as_tensor(reference(x[0].numpy())))
    torch.testing.assert_close(kernel(x, z)[0, 0], torch.as_tensor(reference(x[0].numpy(), z[0].numpy())))
    torch.testing.assert_close(kernel.diagonal(x)[0, 0], torch.as_tensor(reference.diag(x[0].numpy())))


def test_cosine_equals_the_one_of_scikit_learn() -> None:
    x, z = features(1, 6, 3), features(1, 4, 3, seed=1)
    expected = torch.as_tensor(cosine_similarity(x[0].numpy(), z[0].numpy()))
    torch.testing.assert_close(Cosine()(x, z)[0, 0], expected)


def test_centred_cosine_is_the_cosine_of_centred_features() -> None:
    x = features(1, 6, 3) + 4
    expected = torch.as_tensor(cosine_similarity((x - x.mean(1, keepdim=True))[0].numpy()))
    torch.testing.assert_close(Cosine(centre=True)(x)[0, 0], expected)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RBF(lengthscale=0.6), gpytorch.kernels.RBFKernel()),
        (Matern(nu=0.5, lengthscale=0.6), gpytorch.kernels.MaternKernel(nu=0.5)),
        (Matern(nu=1.5, lengthscale=0.6), gpytorch.kernels.MaternKernel(nu=1.5)),
        (Matern(nu=2.5, lengthscale=0.6), gpytorch.kernels.MaternKernel(nu=2.5)),
    ],
    ids=["rbf", "matern 1/2", "matern 3/2", "matern 5/2"],
)
def test_stationary_kernel_equals_the_one_of_gpytorch(ours: Kernel, theirs: gpytorch.kernels.Kernel) -> None:
    adapted = GPyTorchKernel(copy.deepcopy(theirs).double())
    adapted.kernel.lengthscale = 0.6
    x, z = features(3, 6, 4), features(3, 5, 4, seed=1)
    torch.testing.assert_close(ours(x, z), adapted(x, z))


# --- properties of every kernel ---


@any_kernel
@settings(max_examples=15)
@given(x=batches())
def test_matrix_is_symmetric_and_positive_semi_definite(name: str, x: Tensor) -> None:
    K = build(name)(x)
    assert torch.equal(K, K.mT)
    eigenvalues = torch.linalg.eigvalsh(K)
    assert (eigenvalues >= -1e-12 * eigenvalues.amax(-1, keepdim=True).clamp(min=1e-300)).all()


@any_kernel
def test_matrix_is_positive_semi_definite_in_single_precision(name: str) -> None:
    x = features(4, 60, 16, dtype=torch.float32).relu() + 1
    x = torch.cat([x, x + 1e-4 * features(4, 60, 16, seed=1, dtype=torch.float32)], 1)
    K = build(name).float()(x)
    assert K.dtype == torch.float32
    assert torch.equal(K, K.mT)
    eigenvalues = torch.linalg.eigvalsh(K.double())
    assert (eigenvalues >= -3e-7 * eigenvalues.amax(-1, keepdim=True)).all()


@any_kernel
@settings(max_examples=10)
@given(x=batches())
def test_diagonal_is_that_of_the_matrix(name: str, x: Tensor) -> None:
    kernel = build(name)
    torch.testing.assert_close(kernel.diagonal(x), kernel(x).diagonal(dim1=-2, dim2=-1))


@any_kernel
def test_batch_equals_loop(name: str) -> None:
    kernel, x, z = build(name), features(4, 5, 3) + 2, features(4, 3, 3, seed=1)
    for batched, single in (
        (kernel(x), [kernel(a) for a in x.split(1)]),
        (kernel(x, z), [kernel(a, b) for a, b in zip(x.split(1), z.split(1), strict=True)]),
        (kernel.diagonal(x), [kernel.diagonal(a) for a in x.split(1)]),
    ):
        torch.testing.assert_close(batched, torch.cat(single))


@any_kernel
@settings(max_examples=10)
@given(x=batches(), n=st.integers(1, 4))
def test_cross_covariance_is_a_block_of_the_matrix_of_all_points(name: str, x: Tensor, n: int) -> None:
    kernel, centre = build(name), x[:, :n].mean(1, keepdim=True)
    support, query = x[:, :n], x[:, n:]
    whole = kernel(x, centre=centre)
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if "1/2" in name else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(kernel(support), whole[..., :n, :n], **tolerance)
    torch.testing.assert_close(kernel(support, query), whole[..., :n, n:], **tolerance)
    torch.testing.assert_close(
        kernel.diagonal(query, centre=centre), whole.diagonal(dim1=-2, dim2=-1)[..., n:], **tolerance
    )


@any_kernel
def test_gradients_equal_finite_differences(name: str) -> None:
    kernel = build(name)
    x, z = (features(2, 3, 2, seed=seed).requires_grad_() for seed in (0, 1))
    parameters = tuple(kernel.parameters())

    def values(x: Tensor, z: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        return kernel(x), kernel(x, z), kernel.diagonal(x)

    assert torch.autograd.gradcheck(values, (x, z, *parameters), eps=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_equal_finite_differences_at_duplicated_points(name: str) -> None:
    kernel = build(name)
    x = features(1, 2, 2)
    x = torch.cat([x, x], 1).requires_grad_()
    assert torch.autograd.gradcheck(kernel, (x,), eps=1e-4, atol=1e-5)
    assert torch.autograd.gradcheck(lambda x: kernel(x, x), (x,), eps=1e-4, atol=1e-5)


@any_kernel
def test_gradients_are_finite_at_duplicated_and_zero_points(name: str) -> None:
    kernel = build(name).float()
    x = features(2, 4, 3, dtype=torch.float32)
    x = torch.cat([x, x, torch.zeros(2, 2, 3)], 1).requires_grad_()
    loss = kernel(x).square().sum() + kernel(x, x).sum() + kernel.diagonal(x).sum()
    for gradient in torch.autograd.grad(loss, [x, *kernel.parameters()]):
        assert gradient.isfinite().all()


@any_kernel
def test_result_has_the_type_of_the_features(name: str) -> None:
    kernel = build(name)
    for parameters in (torch.float32, torch.float64):
        for dtype in (torch.float32, torch.float64):
            assert kernel.to(parameters)(features(1, 3, 2, dtype=dtype)).dtype == dtype


@any_kernel
def test_result_is_on_the_device_of_the_features(name: str) -> None:
    x = features(2, 3, 2).to("meta")  # any mixture with another device would raise
    kernel = build(name).to("meta")
    for result in (kernel(x), kernel(x, x), kernel.diagonal(x)):
        assert result.device == x.device


@any_kernel
def test_missing_values_are_not_hidden(name: str) -> None:
    x = features(1, 4, 3)
    x[0, 1, 2] = torch.nan
    assert build(name)(x)[0, 0, 0, 1].isnan()


def test_half_precision_and_autocast_give_single_precision() -> None:
    x = features(2, 5, 4, dtype=torch.float32)
    kernel = TrainableKernel(RBF())
    expected = kernel(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(kernel(x), expected)
        assert kernel.diagonal(x).dtype == torch.float32
    assert kernel(x.bfloat16()).dtype == torch.float32


def test_every_kernel_survives_its_state_dict() -> None:
    for name in BUILDERS:
        kernel, other = build(name), TrainableKernel(BUILDERS[name](outputscale=1.0)).double()
        other.load_state_dict(kernel.state_dict())
        assert torch.equal(kernel(features(1, 4, 3)), other(features(1, 4, 3)))


# --- numerical care ---


@pytest.mark.parametrize("kernel", [cls(outputscale=2.7, **o) for cls, o in STATIONARY], ids=str)
def test_variance_of_stationary_kernel_is_exactly_the_output_scale(kernel: Kernel) -> None:
    x = 100 * features(2, 30, 50, dtype=torch.float32)
    expected = torch.full((2, 1, 30), 2.7)
    assert torch.equal(kernel(x).diagonal(dim1=-2, dim2=-1), expected)
    assert torch.equal(kernel.diagonal(x), expected)


def test_distances_keep_their_digits_far_from_the_origin() -> None:
    x, z = features(2, 6, 4, dtype=torch.float32), features(2, 5, 4, seed=1, dtype=torch.float32)
    far = 2.0**12
    expected = (((x + far)[:, :, None] - (z + far)[:, None]) ** 2).sum(-1)[:, None]
    torch.testing.assert_close(squared_distance(x + far, z + far), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_features", [2, 64, 1600])
def test_distance_of_duplicated_points_is_exactly_zero(dtype: torch.dtype, n_features: int) -> None:
    x = features(2, 20, n_features, dtype=dtype).relu() + 3
    for distance in (squared_distance(x, x), squared_distance(torch.cat([x, x], 1), None)[..., :20, 20:]):
        assert (distance.diagonal(dim1=-2, dim2=-1) == 0).all()


@pytest.mark.parametrize("centre", [False, True])
def test_zero_vectors_have_no_covariance(centre: bool) -> None:
    x = features(2, 4, 3)
    x[:, 1] = x[:, [0, 2, 3]].mean(1) if centre else 0.0  # with a centre, zero is the mean of all points
    kernel = Cosine(centre=centre)
    K = kernel(x)
    assert (K[..., 1, :] == 0).all()
    assert (kernel.diagonal(x)[..., 1] == 0).all()
    torch.testing.assert_close(kernel.diagonal(x)[..., [0, 2, 3]], torch.ones(2, 1, 3, dtype=x.dtype))


def test_a_single_or_repeated_point_is_its_own_centre_and_not_noise() -> None:
    x = torch.full((1, 7, 5), 0.1).cumsum(-1)
    assert (Cosine(centre=True)(x) == 0).all()
    assert (Cosine(centre=True)(x[:, :1]) == 0).all()


@pytest.mark.parametrize("size", [1e-18, 1e30])
def test_cosine_neither_underflows_nor_overflows(size: float) -> None:
    x = features(1, 4, 3, dtype=torch.float32)
    torch.testing.assert_close(Cosine()(size * x), Cosine()(x))


# --- hyper-parameters ---


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (RBF, ["outputscale", "lengthscale"]),
        (Matern, ["outputscale", "lengthscale"]),
        (Polynomial, ["outputscale", "offset"]),
        (Linear, ["outputscale"]),
        (Cosine, ["outputscale"]),
    ],
)
def test_hyper_parameters_per_class_equal_one_kernel_per_class(cls: type[Kernel], names: list[str]) -> None:
    x, z = features(2, 5, 3), features(2, 4, 3, seed=1)
    values = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    kernel = cls(n_way=3, **dict.fromkeys(names, values))
    assert kernel(x).shape == (2, 3, 5, 5)
    assert kernel.n_kernels == 3
    for c, value in enumerate(values.tolist()):
        single = cls(**dict.fromkeys(names, value))
        torch.testing.assert_close(kernel(x)[:, c], single(x)[:, 0])
        torch.testing.assert_close(kernel(x, z)[:, c], single(x, z)[:, 0])
        torch.testing.assert_close(kernel.diagonal(x)[:, c], single.diagonal(x)[:, 0])


def test_hyper_parameters_are_read_trained_and_not_changed() -> None:
    kernel = RBF(n_way=2, lengthscale=0.5, outputscale=torch.tensor([2.0, 3.0]))
    np.testing.assert_allclose(kernel.lengthscale, [0.5, 0.5])
    np.testing.assert_allclose(kernel.outputscale, [2.0, 3.0])
    with pytest.raises(ValueError, match="read-only"):
        kernel.outputscale[0] = 1.0
    module = TrainableKernel(kernel)
    assert {name for name, _ in module.named_parameters()} == {"log_outputscale", "log_lengthscale"}
    module.scales["outputscale"].sum().backward()
    torch.testing.assert_close(module.log_outputscale.grad, torch.tensor([2.0, 3.0]))
    with torch.no_grad():
        module.log_outputscale.add_(1.0)
    np.testing.assert_allclose(module.value().outputscale, np.exp(1) * kernel.outputscale, rtol=1e-6)
    np.testing.assert_allclose(kernel.outputscale, [2.0, 3.0])


@any_kernel
def test_arrays_tensors_and_modules_have_the_same_covariances(name: str) -> None:
    kernel, module = BUILDERS[name](outputscale=2.5), build(name)
    x, z = features(3, 5, 4) + 1, features(3, 4, 4, seed=1)
    x[:, 1], z[:, 0] = x[:, 0], 0.0
    for found, of_tensors, of_module in (
        (kernel(x.numpy(), z.numpy()), kernel(x, z), module(x, z)),
        (kernel(x.numpy()), kernel(x), module(x)),
        (kernel.diagonal(x.numpy()), kernel.diagonal(x), module.diagonal(x)),
    ):
        np.testing.assert_allclose(found, of_tensors.numpy(), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found, of_module.detach().numpy(), rtol=1e-6, atol=1e-6)


@any_kernel
def test_a_module_has_the_value_that_it_started_from(name: str) -> None:
    kernel = BUILDERS[name](outputscale=2.5)
    assert repr(TrainableKernel(kernel).start) == repr(kernel)
    again, x = TrainableKernel(kernel).double().value(), features(1, 4, 3).numpy()
    np.testing.assert_allclose(again(x), kernel(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RBF(lengthscale=0.0), "Expected `lengthscale` to be positive and finite, but got 0.0"),
        (
            lambda: Linear(outputscale=float("nan")),
            "`outputscale` to be positive and finite, but",
        ),
        (
            lambda: RBF(n_way=3, outputscale=torch.ones(2)),
            r"number or one per kernel \(3\), but got shape \(2,\)",
        ),
        (lambda: RBF(n_way=0), "Expected `n_way` to be None or at least 1, but got 0"),
        (lambda: Polynomial(power=0), "Expected `power` to be a positive integer, but got 0"),
        (lambda: Matern(nu=2.0), "Expected `nu` to be 0.5, 1.5 or 2.5, but got 2.0"),
        (lambda: Linear(n_way=2) + RBF(n_way=3), r"same `n_way` \(or none\), but got \[2, 3\]"),
    ],
)
def test_wrong_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (torch.zeros(3, 2), None, None),
            r"Expected `x` to be features of shape \(T, N, D\), but got \(3, 2\)",
        ),
        (
            (torch.zeros(1, 3, 2).long(), None, None),
            "Expected `x` to be floating-point features, but got torch.int64",
        ),
        (
            (torch.zeros(1, 3, 2), torch.zeros(1, 3, 4), None),
            r"Expected `z` of shape \(1, M, 2\).*got \(1, 3, 4\)",
        ),
        (
            (torch.zeros(1, 3, 2), torch.zeros(1, 3, 2).double(), None),
            "torch.float32 to match `x`.*torch.float64",
        ),
        (
            (torch.zeros(2, 3, 2), None, torch.zeros(2, 2)),
            r"Expected `centre` of shape \(2, 1, 2\), but got \(2, 2\)",
        ),
    ],
)
def test_wrong_features_are_refused(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        as_features(*arguments)


# --- centre, sums, products, adapter, registry ---


def test_cross_covariance_uses_the_centre_of_its_first_argument() -> None:
    support, query = features(2, 5, 3) + 2, features(2, 4, 3, seed=1)
    kernel, centre = Cosine(centre=True), support.mean(1, keepdim=True)
    torch.testing.assert_close(kernel(support, query), kernel(support, query, centre=centre))
    torch.testing.assert_close(kernel(query, support, centre=centre), kernel(support, query).mT)
    torch.testing.assert_close(kernel(support, query), Cosine()(support - centre, query - centre))


def test_kernels_that_do_not_centre_ignore_the_centre() -> None:
    x = features(2, 5, 3)
    torch.testing.assert_close(Cosine()(x, centre=x[:, :1]), Cosine()(x))


def test_sums_and_products_combine_shared_kernels_with_kernels_per_class() -> None:
    x, z = features(2, 4, 3), features(2, 3, 3, seed=1)
    a, b, c = RBF(), Linear(n_way=3, outputscale=torch.tensor([1.0, 2.0, 3.0])), Cosine(centre=True)
    kernel = a + b * c
    assert isinstance(kernel, Sum)
    assert isinstance(b * c, Product)
    assert kernel.n_kernels == 3
    torch.testing.assert_close(kernel(x, z), a(x, z) + b(x, z) * c(x, z))
    torch.testing.assert_close(kernel.diagonal(x), a.diagonal(x) + b.diagonal(x) * c.diagonal(x))


def test_adapter_takes_a_batch_of_tasks_and_kernels_per_class() -> None:
    theirs = gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])), batch_shape=torch.Size([3])
    )
    theirs.outputscale = torch.tensor([1.0, 2.0, 3.0])
    theirs.base_kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0])[:, None, None]
    adapted = GPyTorchKernel(theirs)
    ours = RBF(n_way=3, outputscale=torch.tensor([1.0, 2.0, 3.0]), lengthscale=torch.tensor([0.5, 1.0, 2.0]))
    x, z = features(4, 5, 2), features(4, 6, 2, seed=1)
    assert adapted.n_kernels == 3
    torch.testing.assert_close(adapted(x), ours(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(adapted(x, z), ours(x, z), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(adapted.diagonal(x), ours.diagonal(x), rtol=1e-6, atol=1e-6)
    assert torch.equal(adapted(x), adapted(x).mT)


@pytest.mark.parametrize(
    "theirs",
    [
        gpytorch.kernels.LinearKernel(),
        gpytorch.kernels.PeriodicKernel(),
        gpytorch.kernels.RQKernel() + gpytorch.kernels.PolynomialKernel(power=2),
        gpytorch.kernels.RBFKernel(ard_num_dims=3),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_adapter_agrees_with_the_kernel_on_each_task(theirs: gpytorch.kernels.Kernel) -> None:
    x, z = features(3, 5, 3, dtype=torch.float32), features(3, 4, 3, seed=1, dtype=torch.float32)
    kernel = GPyTorchKernel(theirs)
    for t in range(3):
        torch.testing.assert_close(kernel(x, z)[t, 0], theirs(x[t], z[t]).to_dense())
        torch.testing.assert_close(kernel.diagonal(x)[t, 0], theirs(x[t]).to_dense().diagonal())


def test_adapter_trains_the_kernel_and_prepares_features() -> None:
    kernel = GPyTorchKernel(gpytorch.kernels.LinearKernel(), normalise=True, centre=True)
    kernel.kernel.variance = 1.0
    x = features(2, 5, 3, dtype=torch.float32)
    torch.testing.assert_close(kernel(x), Cosine(centre=True)(x))
    kernel(x).sum().backward()
    assert all(parameter.grad is not None for parameter in kernel.parameters())


def test_adapter_refuses_what_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match=r"batch_shape \(\) or \(n_way,\), but got \(2, 3\)"):
        GPyTorchKernel(gpytorch.kernels.RBFKernel(batch_shape=torch.Size([2, 3])))
    theirs = gpytorch.kernels.RBFKernel()
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(ImportError, match=r"pip install 'mirrorshot\[gpytorch\]'"):
        GPyTorchKernel(theirs)


def test_make_kernel_knows_every_name() -> None:
    for name in KERNELS:
        options = {"kernel": gpytorch.kernels.RBFKernel()} if name == "gpytorch" else {"outputscale": 2.0}
        assert isinstance(make_kernel(name, **options), FAMILIES.get(name, GPyTorchKernel))


def test_make_kernel_lists_the_known_names() -> None:
    known = "cosine, rbf, matern, linear, polynomial, gpytorch"
    with pytest.raises(InvalidInputError, match=f"Expected `name` to be one of {known}, but got 'gauss'."):
        make_kernel("gauss")
