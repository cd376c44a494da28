"""A console of rich that writes control characters in what it shows as escapes. Imported when something is drawn."""

from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from mirrorshot.files.texts import harmless


class HarmlessConsole(Console):
    """A console on which names of strangers cannot steer the terminal. Arguments as of `rich.console.Console`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.push_render_hook(_Hook())


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Each thing that is to be drawn, made harmless."""
        return [_Harmless(renderable) for renderable in renderables]


class _Harmless:
    """The same drawing with escapes in its text; colours and movements of the cursor that rich makes are no text."""

    def __init__(self, content: ConsoleRenderable) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)
