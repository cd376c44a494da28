"""The CUDA graph of benchmarks/speed.py, with stand-ins for what needs a GPU."""

import contextlib
import gc
import importlib
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn


class Stream:
    def wait_stream(self, other):
        """Nothing to wait for."""


class Graph:
    """As a CUDA graph, it keeps nothing alive of what it has recorded."""

    n_replays = 0

    def replay(self):
        self.n_replays += 1


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name, stand_in in {
        "Stream": Stream, "current_stream": Stream, "CUDAGraph": Graph,
        "stream": contextlib.nullcontext, "graph": contextlib.nullcontext,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return importlib.import_module("speed").recorded


def make_step():
    """A step, and weak references to everything whose memory it uses."""
    network, images = nn.Linear(4, 2), torch.ones(3, 4)
    adam = torch.optim.Adam(network.parameters())

    def step():
        adam.zero_grad()
        network(images).square().sum().backward()
        adam.step()

    return step, [weakref.ref(thing) for thing in (network, images, adam, network.weight)]


def test_a_recorded_step_keeps_alive_what_it_was_recorded_on(recorded):
    step, used = make_step()
    run = recorded(step)
    del step
    gc.collect()
    assert all(reference() is not None for reference in used)
    before = used[3]().detach().clone()
    run()
    assert torch.equal(used[3](), before)  # the graph runs, not the step
    del run
    gc.collect()
    assert [reference() for reference in used] == [None] * 4
