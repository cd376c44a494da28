import pytest
import torch

from mirrorshot.gp.linalg import check_kernel_matrix, cholesky_of_shifted
from mirrorshot.types import InvalidInputError


def kernels(n_tasks=3, n=4, dtype=torch.float64):
    x = torch.randn(n_tasks, 1, n, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return x @ x.mT


def test_cholesky_factorises_the_shifted_matrix():
    K = kernels()
    root = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    L, info = cholesky_of_shifted(K, root)
    S = torch.diag_embed(root)
    torch.testing.assert_close(L @ L.mT, torch.eye(4, dtype=torch.float64) + S @ K @ S)
    assert torch.equal(L, L.tril())
    assert (info == 0).all()


def test_cholesky_reports_an_indefinite_matrix_and_no_other():
    K = torch.stack([torch.eye(2), torch.tensor([[1.0, 4.0], [4.0, 1.0]])])[:, None]
    _, info = cholesky_of_shifted(K, torch.ones(2, 1, 2))
    assert (info != 0).tolist() == [[False], [True]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_kernel_matrices_with_rounding_errors_are_accepted(scale, dtype):
    K = scale * kernels(dtype=dtype)
    check_kernel_matrix(K)
    noise = torch.rand(K.shape, generator=torch.Generator().manual_seed(0))
    check_kernel_matrix(K * (1 + 10 * torch.finfo(dtype).eps * noise).to(dtype))
    check_kernel_matrix(torch.zeros(1, 1, 3, 3, dtype=dtype))


@pytest.mark.parametrize("shape", [(3, 1, 4, 5), (4, 4), (3, 4, 4)])
def test_matrices_that_are_not_square_batches_are_refused(shape):
    with pytest.raises(InvalidInputError) as error:
        check_kernel_matrix(torch.zeros(shape))
    assert str(error.value) == (f"Expected `K` to be square matrices of shape (T, 1 or C, N, N), but got {shape}.")


def test_matrices_without_points_are_refused():
    with pytest.raises(InvalidInputError, match=r"at least one point, but got shape \(2, 1, 0, 0\)"):
        check_kernel_matrix(torch.zeros(2, 1, 0, 0))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bool])
def test_types_without_a_factorisation_are_refused(dtype):
    with pytest.raises(InvalidInputError, match=f"to be float32 or float64, but got {dtype}"):
        check_kernel_matrix(torch.ones(1, 1, 2, 2).to(dtype))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_task_with_a_value_that_is_not_finite_is_named(bad):
    K = kernels()
    K[2, 0, 1, 3] = K[2, 0, 3, 1] = bad
    with pytest.raises(InvalidInputError, match="`K` to be finite, but task 2 contains NaN or infinity"):
        check_kernel_matrix(K)


def test_the_task_with_an_asymmetric_matrix_is_named_with_the_difference():
    K = torch.eye(4).repeat(3, 2, 1, 1)
    K[1, 1, 0, 2] += 0.25
    with pytest.raises(InvalidInputError, match=r"symmetric, but in task 1 .* mirror image by 0\.25\. Use \(K"):
        check_kernel_matrix(K)


def test_the_task_with_a_negative_variance_is_named_with_its_value():
    K = torch.eye(4).repeat(3, 1, 1, 1)
    K[2, 0, 1, 1] = -0.5
    with pytest.raises(InvalidInputError, match=r"non-negative diagonal .* task 2 has -0\.5"):
        check_kernel_matrix(K)


def test_messages_use_the_name_of_the_argument():
    with pytest.raises(InvalidInputError, match="`K_support`"):
        check_kernel_matrix(torch.zeros(2, 3), "K_support")


def test_the_check_takes_no_part_in_differentiation():
    K = kernels().requires_grad_()
    check_kernel_matrix(K)
    assert K.grad_fn is None


def test_an_indefinite_matrix_is_refused_and_a_singular_one_is_not():
    vector = torch.tensor([1.0, -1.0, 1.0, 1.0])
    check_kernel_matrix((vector[:, None] * vector)[None, None])
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]]).expand(3, 1, 2, 2).clone()
    indefinite[0] = torch.eye(2)
    with pytest.raises(InvalidInputError, match="positive semi-definite, but task 1 has a negative eigenvalue"):
        check_kernel_matrix(indefinite)
