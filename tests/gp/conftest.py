import pytest


@pytest.fixture
def few_shot_tasks():
    """Random tasks: classes are clouds around random centres, features have unit norm."""
    torch = pytest.importorskip("torch")

    def make(n_tasks, n_way, n_shot, scale, *, kernel="cosine", spread=1.0, seed=0, n_features=64):
        g = torch.Generator().manual_seed(seed)
        centres = torch.randn(n_tasks, n_way, 1, n_features, generator=g, dtype=torch.float64)
        noise = torch.randn(n_tasks, n_way, n_shot, n_features, generator=g, dtype=torch.float64)
        x = (centres + spread * noise).reshape(n_tasks, n_way * n_shot, n_features)
        z = x / x.norm(dim=-1, keepdim=True)
        K = z @ z.mT if kernel == "cosine" else torch.exp(-(torch.cdist(z, z) ** 2) / (2 * 0.7**2))
        K = scale * (K + K.mT) / 2
        y = torch.arange(n_way).repeat_interleave(n_shot).expand(n_tasks, -1)
        return K[:, None], y.contiguous()

    return make


@pytest.fixture
def small_task():
    """One task with a prior covariance of full rank, and labels 0, 1, ... in turn."""
    torch = pytest.importorskip("torch")

    def make(n_way=3, n=4, scale=2.0, seed=0):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 1, n, 2 * n, generator=g, dtype=torch.float64)
        return scale * (x @ x.mT) / (2 * n), torch.arange(n)[None] % n_way

    return make
