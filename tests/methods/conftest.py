import pytest
import torch

from mirrorshot.data import ClassSource, EpisodeSampler


@pytest.fixture
def clouds():
    """Makes a source of Gaussian clouds, one for each class, in float64."""

    def make(n_features, n_classes=10, *, spread=0.7, shift=0.0):
        generator = torch.Generator().manual_seed(0)
        centres = shift + torch.randn(n_classes, 1, n_features, generator=generator, dtype=torch.float64)
        x = centres + spread * torch.randn(n_classes, 20, n_features, generator=generator, dtype=torch.float64)
        return ClassSource.from_arrays(x.reshape(-1, n_features), torch.arange(n_classes).repeat_interleave(20))

    return make


@pytest.fixture
def source(clouds):
    return clouds(8)


@pytest.fixture
def drawn(source):
    """Three tasks, each of 5 classes with 2 labelled items and 4 queries."""
    return EpisodeSampler(source, n_way=5, n_shot=2, n_query=4, seed=0).draw(3)


@pytest.fixture
def predictions_by_torch():
    """Predicts task by task, with heads that torch's own optimiser fits from the layers that `build` starts."""

    def fit(build, logits, x, y, n_way, *, seed, n_passes=100, batch_size=4, **options):
        """A head of one task; the i-th row of draws belongs to point i and class i."""
        generator, D = torch.Generator().manual_seed(seed), x.shape[1]
        draws = torch.stack([torch.rand(D + 1 + n_passes, generator=generator) for _ in range(len(x))]).double()
        layer = build((2 * draws[:n_way, : D + 1] - 1) / D**0.5)
        settings = {"lr": 0.01, "momentum": 0.9, "dampening": 0.9, "weight_decay": 1e-3} | options
        sgd = torch.optim.SGD(layer.parameters(), **settings)
        for place in draws[:, D + 1 :].T:
            for index in place.argsort().split(batch_size):
                sgd.zero_grad()
                torch.nn.functional.cross_entropy(logits(layer, x[index]), y[index]).backward()
                sgd.step()
        return layer

    def predict(build, logits, tasks, **options):
        support = zip(tasks.support_x, tasks.support_y, strict=True)
        heads = [fit(build, logits, x, y, tasks.n_way, **options) for x, y in support]
        return torch.stack([logits(head, x).log_softmax(-1) for head, x in zip(heads, tasks.query_x, strict=True)])

    return predict


@pytest.fixture
def assert_half_precision_is_close():
    """Predicts with the network in half precision, too: other numbers, single precision, close in probability."""

    def compare(method, tasks, atol):
        full = method.predict(tasks)
        method.network_dtype = torch.bfloat16
        half = method.predict(tasks)
        assert half.dtype == torch.float32
        assert not torch.equal(half, full)
        torch.testing.assert_close(half.exp(), full.exp(), atol=atol, rtol=0.0)

    return compare


@pytest.fixture
def pad():
    """Makes tasks with one class more, without items, and with padding: a support item first, a query last."""

    def padded(tasks, query_y, value):
        item = torch.full_like(tasks.support_x[:, :1], value)
        zero, label = torch.zeros(tasks.n_tasks, 1), torch.zeros(tasks.n_tasks, 1).long()
        wider = tasks._replace(
            support_x=torch.cat([item, tasks.support_x], 1),
            support_y=torch.cat([label, tasks.support_y], 1),
            support_weight=torch.cat([zero, tasks.support_weight], 1),
            query_x=torch.cat([tasks.query_x, item], 1),
            query_weight=torch.cat([tasks.query_weight, zero], 1),
            n_way=tasks.n_way + 1,
            class_mask=torch.cat([tasks.class_mask, zero.bool()], 1),
        )
        return wider, torch.cat([query_y, label], 1)

    return padded


@pytest.fixture
def assert_gradient_in_kernel():
    """Compares the gradient of the loss in the scale of the kernel with finite differences."""

    def compare(method, tasks, query_y):
        method.loss(tasks, query_y).sum().backward()
        values = []
        for shift in (1e-5, -2e-5):
            with torch.no_grad():
                method.kernel.log_outputscale.add_(shift)
            values.append(method.loss(tasks, query_y).sum().item())
        assert float(method.kernel.log_outputscale.grad) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)

    return compare
