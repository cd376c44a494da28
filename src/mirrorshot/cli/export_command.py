"""`mirrorshot export`."""

from pathlib import Path
from typing import Annotated

from mirrorshot.cli.models import load_model
from mirrorshot.cli.options import AsJson, ModelFile, examples, output_option
from mirrorshot.cli.terminal import prepare_file, say_result, short_work


@examples(
    {
        "mirrorshot export model.mirrorshot -o head.onnx": "The classifier for onnxruntime: embeddings in; "
        "probabilities, latent mean and variance out.",
    }
)
def export(
    model: ModelFile,
    output: Annotated[Path, output_option(help="File to write.")] = Path("head.onnx"),
    as_json: AsJson = False,
) -> None:
    """Write the classifier of a model as ONNX. It takes embeddings; the encoder is not part of the file."""
    prepare_file("--output", output, inputs=(model,))
    with short_work():
        from mirrorshot.classifier.export import export_onnx

        fitted = load_model(model)
        of_table = fitted.encoder.tensors() if fitted.encoder.kind == "embedding" else {}  # mean and scale of columns
        export_onnx(fitted.head, output, **of_table)
    n_features = int(fitted.head.n_features_in_)
    record = {"output": str(output), "n_features": n_features, "classes": fitted.classes}
    text = f"{output}: embeddings (n, {n_features}) -> probabilities of {', '.join(fitted.classes)}"
    say_result(record, text, as_json=as_json)
