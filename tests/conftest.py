import jaxtyping
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tests run side by side in several processes; more threads in each would only be in the way."""
    torch.set_num_threads(1)


@pytest.fixture
def as_for_users(monkeypatch):
    """Switch off the run-time shape checks, to see what a user sees when an argument is wrong."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
