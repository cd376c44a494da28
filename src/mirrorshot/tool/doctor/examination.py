"""All checks of a folder, and of another one against it."""

from pathlib import Path
from typing import NamedTuple

from mirrorshot.encoders import make_encoder
from mirrorshot.tool.choosing import decide
from mirrorshot.tool.doctor import checks
from mirrorshot.tool.doctor.checks import Finding
from mirrorshot.tool.doctor.images import list_files, look
from mirrorshot.tool.encoding import Progress
from mirrorshot.tool.items import Items


class Report(NamedTuple):
    """Number of readable images and of their classes, name of the encoder, and findings, the worst first."""

    n_pictures: int
    n_classes: int
    encoder: str
    findings: list[Finding]

    @property
    def has_errors(self) -> bool:
        """Whether anything is wrong for certain."""
        return any(finding.severity == "error" for finding in self.findings)


def examine(
    folder: str | Path,
    against: str | Path | None = None,
    *,
    encoder: str = "auto",
    download: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Look for causes of bad results: damaged images, copies, wrong labels, classes that look alike.

    Args:
        folder: of class folders, or of images.
        against: another folder, for instance of queries; images that are in both are a leak.
        encoder: compares the images; one of `ENCODERS`.
        download: whether its weights may be fetched.
        progress: called with the number of images read, their total and the activity.

    Raises:
        DataError: a folder is missing or has no images.

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
    root = Path(folder)
    files = list_files(root)
    if encoder == "auto":
        encoder = decide(Items("picture", [str(path) for path in files.paths], files.paths, None)).name
    made = make_encoder(encoder, download=download)
    seen = look(root, files, made, progress)
    findings = [*checks.check_files(seen), *checks.check_counts(seen), *checks.check_duplicates(seen)]
    if against is not None:
        other = look(Path(against), list_files(Path(against)), made, progress)
        findings += [*checks.check_files(other), *checks.check_leaks(seen, other)]
    findings += checks.check_labels(seen)
    findings.sort(key=lambda finding: ("error", "warning", "note").index(finding.severity))
    return Report(len(seen.names), len(set(seen.labels) - {""}), made.name, findings)
