"""Networks in ONNX Runtime, on the CPU."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.encoders.base import EncoderError

_ERRORS_ONLY = 3  # level of ONNX Runtime's own log


def n_threads() -> int:
    """Return the number of threads of a network: `MIRRORSHOT_THREADS`, by default 1, the fastest for small batches."""
    given = os.environ.get("MIRRORSHOT_THREADS", "1")
    if not given.isdecimal() or not 1 <= int(given) <= 1024:
        raise EncoderError(f"Expected MIRRORSHOT_THREADS to be a number of threads, but got {given[:40]!r}.")
    return int(given)


class Network:
    """A network from the bytes of an ONNX file, which returns its first output. Threads may share it."""

    def __init__(self, encoded: bytes, name: str) -> None:
        import onnxruntime

        self._name = name
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = n_threads(), 1
        options.log_severity_level = _ERRORS_ONLY
        try:
            self._session = onnxruntime.InferenceSession(encoded, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the errors of ONNX Runtime have no common class
            reason = " ".join(str(error).split())[:200]
            raise EncoderError(
                f"Expected the network of encoder {name!r} to be an ONNX file, but it cannot be read: {reason}. "
                "Install the package that it comes with again."
            ) from error

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the output for inputs by name, or raise an `EncoderError`."""
        try:
            return np.asarray(self._session.run(None, dict(inputs))[0])
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise EncoderError(f"Expected the network of encoder {self._name!r} to run, but got: {reason}.") from error
