"""What a vLLM source tree defines, read without importing it: names, signatures and fields of any release."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SourceTree:
    """The package `vllm` under `root`; lookups return None where it has no such thing."""

    root: Path

    @cache  # noqa: B019 - a handful of trees live as long as the process
    def module(self, name: str) -> ast.Module | None:
        """Syntax tree of a module or package."""
        base = self.root.joinpath(*name.split("."))
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.exists():
                return ast.parse(file.read_text())
        return None

    def has(self, module: str, name: str) -> bool:
        """Whether `from module import name` finds something."""
        return self.module(f"{module}.{name}") is not None or self._binding(module, name) is not None

    def definition(self, module: str, name: str) -> tuple[str, Definition] | None:
        """The class or function behind a name and its module, through re-exports."""
        found = self._binding(module, name)
        if isinstance(found, Definition):
            return module, found
        if isinstance(found, tuple):
            return self.definition(*found)
        return None

    def lineage(self, module: str, name: str) -> list[tuple[str, ast.ClassDef]]:
        """A class and its bases inside vLLM, depth first."""
        home, node = self.definition(module, name) or (module, None)
        if not isinstance(node, ast.ClassDef):
            return []
        line = [(home, node)]
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base  # Generic[...]
            if isinstance(base, ast.Name):
                line += self.lineage(home, base.id)
        return line

    def method(self, module: str, cls: str, name: str) -> ast.FunctionDef | None:
        """A method of a class or of its nearest base that has it."""
        for _, node in self.lineage(module, cls):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    return item
        return None

    def fields(self, module: str, cls: str) -> dict[str, str]:
        """Fields, methods and attributes of a class with what they are annotated as, "" where they are not."""
        found: dict[str, str] = {}
        for _, node in reversed(self.lineage(module, cls)):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    found[item.target.id] = ast.unparse(item.annotation)
                elif isinstance(item, ast.FunctionDef):
                    for name in (item.name, *_attributes_set_in(item)):
                        found.setdefault(name, "")
        return found

    def keywords(self, module: str, name: str) -> set[str] | None:
        """Parameters that a function or a class takes by keyword; None where it takes any."""
        found = self.definition(module, name)
        if found is None:
            return set()
        function: Definition | None = found[1]
        if isinstance(function, ast.ClassDef):
            function = self.method(module, name, "__init__")
            if function is None:
                return set(self.fields(module, name))
        assert not isinstance(function, ast.ClassDef | None)
        return None if function.args.kwarg else set(parameters(function))

    def _binding(self, module: str, name: str) -> Definition | tuple[str, str] | str | None:
        """What a module binds a name to: a definition, (module, name) that it is imported from, or something else."""
        tree = self.module(module)
        if tree is None:
            return None
        is_package = self.root.joinpath(*module.split("."), "__init__.py").exists()
        stars = []
        for node in _top_level(tree):
            if isinstance(node, Definition) and node.name == name:
                return node
            if isinstance(node, ast.ImportFrom):
                source = _absolute(node, module, is_package)
                for alias in node.names:
                    if alias.name == "*":
                        stars.append(source)
                    elif (alias.asname or alias.name) == name:
                        return source, alias.name
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    return "value"
                lazy = _lazy_export(node, module, name)
                if lazy is not None:
                    return lazy
        return next(((source, name) for source in stars if self._binding(source, name) is not None), None)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of the parameters, without self and cls."""
    args = function.args
    names = [argument.arg for argument in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _attributes_set_in(function: ast.FunctionDef) -> list[str]:
    targets = [target for node in ast.walk(function) if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in ast.walk(function) if isinstance(node, ast.AnnAssign)]
    return [
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    ]


def _top_level(tree: ast.Module) -> list[ast.stmt]:
    """Statements of a module, those under `if` and `try` included."""
    found, pending = [], list(tree.body)
    while pending:
        node = pending.pop(0)
        found.append(node)
        if isinstance(node, ast.If | ast.Try):
            handlers = [body for handler in getattr(node, "handlers", []) for body in handler.body]
            pending = [*node.body, *node.orelse, *handlers, *pending]
    return found


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _lazy_export(node: ast.Assign | ast.AnnAssign, module: str, name: str) -> tuple[str, str] | None:
    """`{"LLM": ".entrypoints.llm:LLM"}`, as vllm/__init__.py exports lazily."""
    if not isinstance(node.value, ast.Dict):
        return None
    for key, value in zip(node.value.keys, node.value.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == name and isinstance(value, ast.Constant):
            source, _, attribute = str(value.value).partition(":")
            return (module + source if source.startswith(".") else source), attribute
    return None
