"""Examples in docstrings are shown as code: Google's plural "Examples" is the section that is known for it."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Read "Example:" as "Examples:"."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
