import io
import os
import pickle

import numpy as np
import pytest
import torch

from mirrorshot.encoders.base import EncoderError
from mirrorshot.encoders.torch_file import read_torch_file


def saved(content):
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def state():
    generator = torch.Generator().manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    with torch.no_grad():
        module[0].weight.copy_(torch.randn(4, 3, 3, 3, generator=generator))
    tensors = module.state_dict()
    tensors["transposed"] = torch.randn(5, 7, generator=generator).T
    tensors["part"] = torch.arange(20.0)[4:10]
    return tensors


def test_arrays_are_those_that_torch_reads():
    content = saved(state())
    expected = torch.load(io.BytesIO(content), weights_only=True)
    found = read_torch_file(content)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], expected[name].numpy()) for name in expected)


class Code:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


HEAD = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(
    "code", [Code(os.system, "touch ran"), Code(eval, "open('ran', 'w')"), Code(getattr, {}, "clear")]
)
def test_code_in_a_file_is_never_run(tmp_path, monkeypatch, place, code):
    monkeypatch.chdir(tmp_path)
    parts = [*HEAD, pickle.dumps({}, 2), pickle.dumps([], 2)]
    parts[place] = pickle.dumps({"weight": code}, 2)
    with pytest.raises(EncoderError, match="is no tensor"):
        read_torch_file(b"".join(parts))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("length", [0, 1, 20, 100, 400, 900])
def test_a_file_that_is_cut_off_is_told(length):
    with pytest.raises(EncoderError, match="cannot be read"):
        read_torch_file(saved(state())[:length])


@pytest.mark.parametrize("content", [torch.nn.Linear(2, 2), {"x": torch.ones(2, dtype=torch.float16)}, {"x": 3}, [1]])
def test_a_file_of_something_else_is_told(content):
    with pytest.raises(EncoderError, match="cannot be read"):
        read_torch_file(saved(content))
