"""The documentation hangs together: links and anchors, in the repository and on the site, and the list of its pages."""

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

from mirrorshot import FewShotClassifier

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NAMES = {"index": "README", "contributing": "CONTRIBUTING", "changelog": "CHANGELOG", "security": "SECURITY"}
GENERATED = {f"{page}.md": f"{name}.md" for page, name in NAMES.items()}
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("api/*.md"), *(ROOT / name for name in GENERATED.values())])


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """How often each anchor occurs that code hosts make of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text()), flags=re.MULTILINE)
    return Counter(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def broken_links(page):
    """Relative links of a page that lead nowhere, or to a heading that is not there once and only once."""
    text = re.sub(r"`[^`\n]+`", "", without_code(page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if "://" in file:
            continue
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchors(path)[anchor] != 1):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page):
    assert list(broken_links(page)) == []


def test_broken_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# One heading\n\n# Twice\n\n# Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#one-heading) [c](https://a.org/x#y) [d](#here)\n\n# Here\n\n"
        "[e](missing.md) [f](other.md#two) [g](#there) ![h](missing.png) [i](other.md#twice)\n\n"
        "`[j](in-code.md)`\n\n```\n[k](in-code.md)\n```\n"
    )
    assert list(broken_links(page)) == ["missing.md", "other.md#two", "#there", "missing.png", "other.md#twice"]


def test_every_page_is_in_the_list_of_the_site_once():
    listed = re.findall(r"^ +- .+: (\S+\.md)\b", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    written = [path.relative_to(DOCS).as_posix() for path in PAGES if path.is_relative_to(DOCS)]
    assert sorted(listed) == sorted([*written, *GENERATED]), "add the page to `nav` in mkdocs.yml"


def test_the_reference_of_the_classifier_has_all_its_methods():
    listed = re.findall(r"^ {8}- (\w+)$", (DOCS / "api" / "classifier.md").read_text(), flags=re.MULTILINE)
    own = [
        name
        for name, member in inspect.getmembers(FewShotClassifier, callable)
        if not name.startswith("_") and member.__module__.startswith("mirrorshot") and member.__doc__
    ]
    assert sorted(listed) == sorted(own)


def test_the_reference_is_of_things_that_exist():
    text = "".join(page.read_text() for page in DOCS.glob("api/*.md"))
    names = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    assert len(names) > 10
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last) or importlib.import_module(name)


NAMED = re.compile(r"`((?:mirrorshot\.)?[a-z_]+(?:\.(?!py\b|md\b)\w+)+)(?:\([^`]*\))?`")  # gp.gaussian.condition


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_names_of_the_package_that_a_page_mentions_exist(page):
    rooms = {path.stem for path in (ROOT / "src" / "mirrorshot").iterdir()}
    names = {name.removeprefix("mirrorshot.") for name in NAMED.findall(without_code(page.read_text()))}
    assert [name for name in sorted(names) if name.split(".")[0] in rooms and not exists(name)] == []


def exists(name):
    """Whether a dotted name is a module of mirrorshot, or something in one."""
    module, names = importlib.import_module("mirrorshot"), name.split(".")
    while names and importlib.util.find_spec(f"{module.__name__}.{names[0]}"):
        module = importlib.import_module(f"{module.__name__}.{names.pop(0)}")
        if names and not hasattr(module, "__path__"):
            break
    found = module
    for part in names:
        found = getattr(found, part, getattr(found, "__annotations__", {}).get(part))
    return found is not None


def test_the_page_of_errors_has_them_all_with_their_modules():
    package = ROOT / "src" / "mirrorshot"
    raised = set()
    for path in package.rglob("*.py"):
        module = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        names = re.findall(r"^class (\w+)\(.*Error.*\):", path.read_text(), flags=re.MULTILINE)
        raised |= {(name, module) for name in names if name != "NotRegularFileError"}  # is caught where it is raised
    page = (DOCS / "api" / "errors.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| .* \| `([\w.]+)` \|", page, flags=re.MULTILINE)) == raised


def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path):
    """One test, because several would build the site in several processes."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    check_nothing_is_loaded_from_elsewhere(tmp_path)
    check_links_lead_somewhere(tmp_path)
    check_search_knows_guide_and_reference(tmp_path)
    check_docstrings_are_understood(tmp_path)


def check_nothing_is_loaded_from_elsewhere(site):
    for page in set(site.rglob("*.html")) - {site / "404.html"}:
        html = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]* src="([^"]+)"', html)
        loaded += re.findall(r'<link[^>]* href="([^"]+)"', html)
        assert loaded
        assert [url for url in loaded if not (page.parent / url.split("?")[0]).exists()] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text())


def check_links_lead_somewhere(site):
    ids = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in site.rglob("*.html")}
    for page in set(ids) - {site / "404.html"}:
        for target in re.findall(r'<a[^>]* href="([^"]+)"', page.read_text()):
            file, _, anchor = target.partition("#")
            if "://" in file:
                continue
            path = (page.parent / unquote(file)).resolve() if file else page
            assert path.exists(), (page.name, target)
            assert not anchor or unquote(anchor) in ids[path], (page.name, target)


def check_search_knows_guide_and_reference(site):
    index = (site / "search" / "search_index.js").read_text()
    for place in ("faq.html#can-i-trust-the-sets", "api/metrics.html#mirrorshot.metrics.brier", "index.html"):
        assert place in index


def check_docstrings_are_understood(site):
    """Examples are code, several names of one item stand apart, and only declared types are shown."""
    html = (site / "api" / "classifier.html").read_text()
    assert "<blockquote>" not in html
    words = re.sub(r"\W+", " ", re.sub(r"<[^>]+>", " ", html))
    for item in ("outputscale_ float the chosen values", "temperature_ float the chosen values", "elbo_ lower bound"):
        assert item in words
