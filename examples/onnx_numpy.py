"""Classify embeddings with only NumPy and onnxruntime, without torch and mirrorshot.

    mirrorshot export model.mirrorshot -o head.onnx
    python examples/onnx_numpy.py head.onnx embeddings.npy

`embeddings.npy` has one embedding per row, from the encoder of the model. Without it, random embeddings are classified,
to show that the file works.
"""

import json
import sys

import numpy as np
import onnxruntime


def main() -> None:
    """Print the most probable class of each embedding, its probability and the uncertainty of its latent."""
    if len(sys.argv) not in (2, 3):
        sys.exit("Expected: python examples/onnx_numpy.py HEAD.onnx [EMBEDDINGS.npy]")
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    size = session.get_inputs()[0].shape[1]
    random = np.random.default_rng(0).normal(size=(3, size))
    X = (np.load(sys.argv[2]) if len(sys.argv) == 3 else random).astype(np.float32)
    prob, mean, variance = session.run(None, {"embeddings": X})
    for row, best in enumerate(prob.argmax(1)):
        std = np.sqrt(variance[row, best])
        print(f"{row}: {classes[best]} {prob[row, best]:.3f} (latent {mean[row, best]:.2f} +- {std:.2f})")


if __name__ == "__main__":
    main()
