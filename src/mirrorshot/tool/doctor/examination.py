"""Examination of a folder with all checks, also against a second folder."""

from pathlib import Path
from typing import NamedTuple

from mirrorshot.data.decoding import Progress
from mirrorshot.encoders import Encoder, make_encoder
from mirrorshot.tool.choosing import decide
from mirrorshot.tool.doctor import checks
from mirrorshot.tool.doctor.checks import Finding
from mirrorshot.tool.doctor.images import Seen, list_images, look_at_folder
from mirrorshot.tool.doctor.rows import look_at_rows
from mirrorshot.tool.items import Items
from mirrorshot.tool.tables import Roles, read_items


class Report(NamedTuple):
    """Number of readable items and of their classes, name of the encoder, and findings, the most severe first."""

    n_pictures: int
    n_classes: int
    encoder: str
    findings: list[Finding]

    @property
    def has_errors(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)


def examine(
    folder: str | Path,
    against: str | Path | None = None,
    *,
    encoder: str = "auto",
    download: bool = False,
    text_column: str | None = None,
    label_column: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Look for causes of bad results: damaged images, copies, wrong labels, classes that look alike.

    `folder` has class folders or images, or is a table of texts or embeddings. Items that are also in `against`, for
    instance queries, are reported as leaks. Items are compared by the embeddings of `encoder`, one of `ENCODERS`.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, shade in (("cat", 10), ("dog", 200)):
        ...     (folder / name).mkdir()
        ...     Image.new("L", (40, 30), shade).save(folder / name / "0.png")
        >>> [finding.check for finding in examine(folder).findings]
        ['blank', 'single']
    """
    root, roles = Path(folder), Roles(text_column, label_column)
    items, empty = _items(root, roles)
    made = _encoder(encoder, items, download)
    seen = _look(root, items, empty, made, progress)
    findings = [*checks.check_files(seen), *checks.check_counts(seen), *checks.check_duplicates(seen)]
    if against is not None:
        other = _look(Path(against), *_items(Path(against), roles), made, progress)
        findings += [*checks.check_files(other), *checks.check_leaks(seen, other)]
    findings += checks.check_labels(seen)
    findings.sort(key=lambda finding: ("error", "warning", "note").index(finding.severity))
    return Report(len(seen.names), len(set(seen.labels) - {""}), made.name, findings)


def _items(root: Path, roles: Roles) -> tuple[Items, list[str]]:
    return (read_items(root, roles), []) if root.is_file() else list_images(root)


def _encoder(name: str, items: Items, download: bool) -> Encoder:
    name = decide(items).name if name == "auto" or items.kind == "embedding" else name
    made = make_encoder(name, download=download)
    return made.fit([str(text) for text in items.content]) if items.kind == "text" else made


def _look(root: Path, items: Items, empty: list[str], encoder: Encoder, progress: Progress | None) -> Seen:
    if root.is_file():
        return look_at_rows(root, items, encoder)
    return look_at_folder(root, items, empty, encoder, progress)
