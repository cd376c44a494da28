"""Browser tool: a web page and a JSON API to build classifiers image by image."""

from mirrorshot.serve.app import make_app
from mirrorshot.serve.settings import Limits, Settings

__all__ = ["make_app", "Limits", "Settings"]
