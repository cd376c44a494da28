"""Networks that compute features of images: blocks and backbones."""

from mirrorshot.networks.backbones import BACKBONES, Backbone, Identity, ImageBackbone, make_backbone

__all__ = ["BACKBONES", "Backbone", "Identity", "ImageBackbone", "make_backbone"]
