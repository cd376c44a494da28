"""A fitted classifier for other programs: ONNX."""

from mirrorshot.classifier.export.head import export_onnx

__all__ = ["export_onnx"]
