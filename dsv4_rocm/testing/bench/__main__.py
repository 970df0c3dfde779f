"""`make bench`: a table and build/bench.json of what every GPU kernel costs, without a GPU.

Registers, spills and code size are the compiler's; cycles and bytes are counted while the machine code runs on the
emulator, or computed from the launch plan. Nothing here is a time.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from dsv4_rocm.kernels.selection import OPS
from dsv4_rocm.testing.bench import budgets, facts, issue_cycles, traffic
from dsv4_rocm.testing.bench.cases import ARCHES, CASES, compile_case, measure, serving
from dsv4_rocm.testing.bench.recorder import AMD
from dsv4_rocm.testing.bench.records import Record, render

LAYER_COUNTER = "dsv4_rocm.testing.bench.layer_launches"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCHDYNAMO_DISABLE": "1"}


def layer_records(name: str) -> list[Record]:
    """S5: launches of a decode step of each kind of layer, counted in a process of its own.

    Raises:
        RuntimeError: the process failed; its last output is shown.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "DSV4_ROCM_"))}
    done = subprocess.run(
        [sys.executable, "-m", LAYER_COUNTER, name], env=environment | ENVIRONMENT, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"counting the launches of a layer on {name} failed:\n{done.stderr[-4000:]}")
    records = []
    for kind, parts in json.loads(done.stdout).items():
        remark = ", ".join(f"{part} {count}" for part, count in parts.items())
        case, launched = f"{kind}-decode-b1", sum(parts.values())
        record = Record(op="decoder_layer", impl="served", arch=name, case=case, how="counted")
        records.append(replace(record, launches_per_layer=launched, remark=remark))
    return records


def all_records() -> Iterator[list[Record]]:
    """Everything, a part at a time."""
    for name in AMD:
        yield issue_cycles.ours(name) + issue_cycles.baseline(name)
        yield traffic.records(name)
        yield layer_records(name)
    for case in CASES:
        if case.shown:
            for name in ARCHES:
                yield measure(case, name)


def propose_budgets(ops: list[str]) -> str:
    """The text of a budgets file for the kernels as they are; those of other ops keep what they have."""
    found = []
    for case in CASES:
        if case.op not in ops:
            continue
        for name in ARCHES:
            for implementation in serving(case.op, name, case.encodings):
                for kernel in compile_case(case, implementation, name):
                    found.append((f"{case.op} {case.group}", kernel.name, name, budgets.figures(kernel)))
    return budgets.text(budgets.load() | budgets.proposed(found))


def main() -> None:
    """Entry of `make bench`."""
    parser = argparse.ArgumentParser(prog="python -m dsv4_rocm.testing.bench", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the records go")
    parser.add_argument(
        "--propose-budgets",
        nargs="*",
        metavar="OP",
        help="compile every shipped configuration of these ops (of all: some minutes) and print budgets for them",
    )
    parser.add_argument("--facts", type=Path, help="a page whose tables are replaced, docs/measured-facts.md")
    arguments = parser.parse_args()
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns unless this is chosen
    console = Console(width=230)
    if arguments.propose_budgets is not None:
        sys.stdout.write(propose_budgets(arguments.propose_budgets or list(OPS)))
        return
    records = [record for part in all_records() for record in part]
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")
    console.print(render(records))
    if arguments.facts:
        facts.update(arguments.facts, records)
    console.print(f"{len(records)} records in {arguments.json}")


if __name__ == "__main__":
    main()
