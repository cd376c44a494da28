"""Links of the documentation, which are written as they work in the repository, made to work on the site.

Four files of the root become pages. A link from docs/ to another file outside of it leads to a copy of that file, and
a link to a folder is left as its text. Anchors are those that code hosts make of headings.
"""

import re
from pathlib import Path
from posixpath import relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
CODE = r"^```.*?^```$|`[^`\n]+`"
LINK = r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)"
CODE_OR_LINK = re.compile(f"{CODE}|{LINK}", flags=re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the anchors of code hosts."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the relative links of a page."""
    is_of_root = page.file.src_uri in ROOT_PAGES.values()
    folder = ROOT if is_of_root else (DOCS / page.file.src_uri).parent

    def rewritten(link: re.Match[str]) -> str:
        if link["path"] is None:  # code stays as it is
            return link[0]
        path = (folder / link["path"]).resolve()
        if path.is_dir():
            return link["text"]
        target = relpath(_place(path, files, config), Path(page.file.src_uri).parent)
        return f"{link['image']}[{link['text']}]({target}{link['anchor'] or ''})"

    return CODE_OR_LINK.sub(rewritten, markdown)


def _place(path: Path, files: Files, config: MkDocsConfig) -> str:
    """Where the site has that file of the repository; a file it does not have yet is copied into it."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    place = f"repository/{name}"
    if place not in files.src_uris:
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return place
