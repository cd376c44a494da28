"""The browser tool: a page and a JSON API for classifiers that people build image by image."""

from mirrorshot.serve.app import make_app
from mirrorshot.serve.settings import Limits, Settings

__all__ = ["make_app", "Limits", "Settings"]
