"""What installed libraries accept, read from their source: importing them takes ten seconds, parsing 0.02 per file."""

import ast
import functools
import importlib.util
import types
from pathlib import Path
from typing import Any

SIMPLE: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (types.NoneType,),
    "dict": (dict,),
    "list": (list,),
}
"""Names in annotations whose values can be told without the library."""
WORDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "None": "null",
         "dict": "a mapping", "list": "a list"}  # fmt: skip


@functools.cache
def tree(source: str) -> ast.Module:
    """Syntax tree of `package/file.py`; an empty one where the package or the file is not there."""
    package, _, file = source.partition("/")
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    return ast.parse(path.read_text(encoding="utf-8") if path and path.is_file() else "")


def annotations(source: str, *classes: str) -> dict[str, ast.AnnAssign]:
    """Annotated fields of the named classes of a file; a later class replaces what an earlier one says."""
    found: dict[str, ast.AnnAssign] = {}
    for node in tree(source).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    found[item.target.id] = item
    return found


def enum_values(source: str, name: str) -> dict[str, str]:
    """Members of an enum of texts: name -> value."""
    nodes = [node for node in tree(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    return {
        item.targets[0].id: str(item.value.value)
        for node in nodes
        for item in node.body
        if isinstance(item, ast.Assign)
        and isinstance(item.targets[0], ast.Name)
        and isinstance(item.value, ast.Constant)
    }


def assigned(source: str, name: str) -> ast.expr | None:
    """What a module assigns to a name."""
    for node in tree(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return node.value
    return None


def texts(node: ast.AST | None) -> list[str]:
    """First text of each pair or item of a list, wherever it stands in the expression."""
    if node is None:
        return []
    lists = [item for item in ast.walk(node) if isinstance(item, ast.List)]
    first = [item.elts[0] if isinstance(item, ast.Tuple) else item for item in (lists[0].elts if lists else [])]
    return [item.value for item in first if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def parameters(source: str, function: str, *, method: str | None = None) -> tuple[dict[str, ast.arg], list[str]]:
    """Parameters of a function, or of a class's method: all of them, and names of those without a default."""
    for node in tree(source).body:
        if isinstance(node, ast.ClassDef) and method and node.name == function:
            node = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == method)
        elif method or not isinstance(node, ast.FunctionDef) or node.name != function:
            continue
        plain = node.args.args
        required = [argument.arg for argument in plain[: len(plain) - len(node.args.defaults)]]
        return {argument.arg: argument for argument in (*plain, *node.args.kwonlyargs)}, required
    return {}, []


def type_problem(annotation: ast.expr, value: Any) -> str | None:
    """What a field takes, such as 'a number or null', if the value is none of it; None also where that is not known."""
    names = _names(annotation)
    if not names or any(name not in SIMPLE for name in names):
        return None
    allowed = tuple(kind for name in names for kind in SIMPLE[name])
    if isinstance(value, bool):
        fits = "bool" in names
    else:
        fits = isinstance(value, allowed)
    return None if fits else " or ".join(WORDS[name] for name in names)


def _names(annotation: ast.expr) -> list[str]:
    """`float | None`, `Optional[float]` -> ['float', 'None']; anything else is a name of its own."""
    if isinstance(annotation, ast.BinOp):
        return _names(annotation.left) + _names(annotation.right)
    if isinstance(annotation, ast.Subscript):
        name = ast.unparse(annotation.value)
        return [*_names(annotation.slice), "None"] if name == "Optional" else [name]
    return [ast.unparse(annotation)]


def choices(field: ast.AnnAssign) -> list[str]:
    """`metadata={"choices": [...]}` of a dataclass field; empty where there are none."""
    for node in ast.walk(field):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "choices":
                    return texts(value)
    return []
