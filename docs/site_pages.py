"""Pages of the site that are no files of `docs/`; a hook of MkDocs, named in `mkdocs.yml`.

The root's documents become pages. A page of the reference lists the names in a module's `__all__`,
or every class of a module without one. Links that lead out of the site become names of files.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
FROM_THE_ROOT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting-weaknesses.md",
}
REFERENCE = {
    "bookie.api": "reference/api.md",
    "bookie.sync": "reference/sync.md",
    "bookie.testing": "reference/testing.md",
    "bookie.errors": "reference/errors.md",
}


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages."""
    for source, page in FROM_THE_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = re.sub(r"\]\(([^)\s:]+)\)", lambda link: f"]({_from_docs(link[1])})", text)
        files.append(File.generated(config, page, content=text))
    for module, page in REFERENCE.items():
        files.append(File.generated(config, page, content=_reference(module)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Name a file that is not part of the site instead of linking to it."""
    to_docs = "../" * page.file.src_uri.count("/")
    link = rf"\[([^\]]+)\]\({re.escape(to_docs)}\.\./([^)\s]+)\)"
    return re.sub(link, lambda found: _inside(found[1], found[2], to_docs), markdown)


def _from_docs(target: str) -> str:
    """A target as a document of `docs/` would name it."""
    if target.startswith(("#", "/")):
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def _inside(text: str, target: str, to_docs: str) -> str:
    name, mark, anchor = target.partition("#")
    if name in FROM_THE_ROOT:
        return f"[{text}]({to_docs}{FROM_THE_ROOT[name]}{mark}{anchor})"
    return f"`{name}`" if PurePosixPath(name).name in text else f"{text} (`{name}`)"


def _reference(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    ]
    names = names or [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    parts = [f"# {module}", f"```text\n{ast.get_docstring(tree)}\n```"]
    parts += [f"::: {module}.{name}" for name in names]
    return "\n\n".join(parts)
