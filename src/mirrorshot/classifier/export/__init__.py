"""A fitted classifier for other programs: ONNX."""

from mirrorshot.classifier.export.head import ExportError, export_onnx

__all__ = ["ExportError", "export_onnx"]
