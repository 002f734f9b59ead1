"""Shows forwarded verbs as the methods that they are, and properties with their docstrings.

An extension of griffe. The site is made from the text of the code. There such a verb is ``verb =
forwarded(Handle.verb)``, and a property is ``name: Shown[int] = shown(Handle.name)``.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import griffe

PACKAGES = ("sync", "testing")
MAKERS = ("forwarded", "opened")


class ForwardedVerbs(griffe.Extension):
    """Puts a function into the place of each such attribute."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look through the classes of the packages that forward."""
        modules = [
            module
            for package in PACKAGES
            if pkg.path == "bookie"
            for module in pkg[package].modules.values()
        ]
        classes = [cls for module in modules for cls in module.classes.values()]
        for cls in (cls for cls in classes if not cls.is_alias):  # an import is no definition
            for name, member in list(cls.attributes.items()):
                if isinstance(member.value, griffe.ExprCall):
                    self._put(cls, name, member, member.value)

    def _put(
        self, cls: griffe.Class, name: str, member: griffe.Attribute, made: griffe.ExprCall
    ) -> None:
        if str(made.function) not in (*MAKERS, "shown"):
            return
        verb, *kind = made.arguments
        method = getattr(getattr(import_module(cls.module.path), cls.name), name)
        if str(made.function) == "shown":
            member.docstring = griffe.Docstring(inspect.getdoc(method) or "", lineno=member.lineno)
            if isinstance(member.annotation, griffe.ExprSubscript):
                member.annotation = member.annotation.slice
            member.value = None
            member.labels = {"property"}
            return
        original = cls.modules_collection[verb.canonical_path]
        shown = griffe.Function(
            name,
            parameters=original.parameters,
            returns=kind[0] if kind else original.returns,
            docstring=griffe.Docstring(inspect.getdoc(method) or "", lineno=member.lineno),
            lineno=member.lineno,
            endlineno=member.endlineno,
            parent=cls,
        )
        cls.set_member(name, shown)
