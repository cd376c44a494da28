"""Export of a fitted classifier to ONNX."""

from mirrorshot.classifier.export.head import export_onnx

__all__ = ["export_onnx"]
