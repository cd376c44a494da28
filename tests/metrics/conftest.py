import pytest


@pytest.fixture
def predictions():
    """Random probabilities, and labels drawn so that about every second prediction is right."""

    torch = pytest.importorskip("torch")

    def make(*shape, n_way=5, seed=0, dtype=torch.float64):
        g = torch.Generator().manual_seed(seed)
        prob = torch.softmax(2.0 * torch.randn(*shape, n_way, generator=g, dtype=torch.float64), -1)
        drawn = torch.randint(n_way, shape, generator=g)
        y = torch.where(torch.rand(shape, generator=g) < 0.4, prob.argmax(-1), drawn)
        return prob.to(dtype), y

    return make


@pytest.fixture
def padded(predictions):
    """Predictions with weights 0, 1 and 2, rubbish where it is 0; and the same repeated so often, pooled."""

    torch = pytest.importorskip("torch")

    def make(*shape, n_way=5, seed=0, most=2):
        prob, y = predictions(*shape, n_way=n_way, seed=seed)
        times = torch.randint(most + 1, shape, generator=torch.Generator().manual_seed(seed + 1))
        rows = prob.reshape(-1, n_way).repeat_interleave(times.flatten(), 0)
        labels = y.flatten().repeat_interleave(times.flatten())
        prob[times == 0], y[times == 0] = torch.nan, -7
        return (prob, y, times.double()), (rows, labels)

    return make
