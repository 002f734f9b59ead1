"""Imports every module of the package; prints as JSON what each that fails says.

A program of its own, for an interpreter that has only the package. What it imports is not looked
for in the folder of this file.
"""

import importlib.util
import json
import pkgutil
import sys


def modules(name: str) -> list[str]:
    """A package and all that is in it, whether or not it can be imported."""
    package = importlib.util.find_spec(name)
    assert package is not None
    paths = list(package.submodule_search_locations or ())
    found = [name]
    for module in pkgutil.iter_modules(paths, f"{name}."):
        found += modules_below(module, paths)
    return found


def modules_below(module: pkgutil.ModuleInfo, paths: list[str]) -> list[str]:
    """A module, and all that is in it if it is a package."""
    found = [module.name]
    if module.ispkg:
        last = module.name.rpartition(".")[2]
        inside = [f"{path}/{last}" for path in paths]
        for inner in pkgutil.iter_modules(inside, f"{module.name}."):
            found += modules_below(inner, inside)
    return found


def main() -> None:
    """Print `{"imported": […], "failed": {module: [type of the error, what it says]}}`."""
    sys.path.pop(0)
    imported, failed = [], {}
    for name in [*modules("bookie"), "pyspark_bookkeeper"]:
        if name.endswith("__main__"):
            continue  # it runs the command line
        try:
            importlib.import_module(name)
            imported.append(name)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is printed)
            failed[name] = [type(error).__name__, str(error)]
    print(json.dumps({"imported": imported, "failed": failed}))


if __name__ == "__main__":
    main()
