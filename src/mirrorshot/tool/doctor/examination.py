"""The examination: all checks of a folder, and of another one against it."""

from pathlib import Path
from typing import NamedTuple

from PIL import Image

from mirrorshot.data.decoding import read_pictures
from mirrorshot.encoders import choose_encoder, make_encoder
from mirrorshot.tool.doctor import checks
from mirrorshot.tool.doctor.checks import Finding
from mirrorshot.tool.doctor.images import Progress, list_files, look

_LOOKED_AT = 50


class Report(NamedTuple):
    """What the doctor found, the worst first.

    Attributes:
        n_pictures: how many could be read.
        n_classes: how many classes they have.
        encoder: name of the encoder that compared them.
        findings: the worst first.
    """

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
    """Look for what makes results bad: damaged pictures, copies, wrong labels, classes that look alike.

    Args:
        folder: of class folders, or of pictures.
        against: another folder, for instance of queries; pictures that are in both are a leak.
        encoder: what compares pictures, as of `mirrorshot fit`.
        download: whether its weights may be fetched.
        progress: told how far it has come.

    Raises:
        DataError: a folder is missing or has no pictures.

    Example:
        >>> import tempfile
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
        found = read_pictures(files.paths[:: max(1, len(files.paths) // _LOOKED_AT)])
        encoder = choose_encoder([picture for picture in found if isinstance(picture, Image.Image)]).name
    made = make_encoder(encoder, download=download)
    seen = look(root, files, made, progress)
    findings = [*checks.check_files(seen), *checks.check_counts(seen), *checks.check_duplicates(seen)]
    if against is not None:
        other = look(Path(against), list_files(Path(against)), made, progress)
        findings += [*checks.check_files(other), *checks.check_leaks(seen, other)]
    findings += checks.check_labels(seen)
    order = ("error", "warning", "note")
    findings.sort(key=lambda finding: order.index(finding.severity))
    return Report(len(seen.names), len(set(seen.labels) - {""}), made.name, findings)
