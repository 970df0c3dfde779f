"""Command line: run a prebuilt code object from a YAML of arguments, disassemble it, or print what it costs."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction, parse
from dsv4_rocm.testing.cdna.code_object import CodeObject
from dsv4_rocm.testing.cdna.cost import clocks
from dsv4_rocm.testing.cdna.device import device
from dsv4_rocm.testing.cdna.effects import family
from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.run_file import EXAMPLE, read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m dsv4_rocm.testing.cdna", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("run", "execute a kernel and print its statistics"),
        ("disasm", "print the assembly of a kernel"),
        ("cost", "print resources and the static instruction mix"),
    ):
        command = commands.add_parser(
            name, help=text, epilog=EXAMPLE if name == "run" else None, formatter_class=argparse.RawTextHelpFormatter
        )
        command.add_argument("file", type=Path, help="code object (.co, .hsaco)")
        command.add_argument("--kernel", help="which kernel, where the file has several")
        if name == "run":
            command.add_argument("--args", type=Path, required=True, help="YAML run file, see below")
            command.add_argument("--schedule", default="lockstep", help="lockstep, forward, reverse or random:SEED")
            command.add_argument(
                "--checks", default="all", help="all, none or waits,barriers,hazards,races,uninitialised"
            )
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _resources(code: CodeObject, kernel: str) -> None:
    info = code.info(kernel)
    _say(f"{kernel} ({code.arch})")
    for key, value in info.resources.items():
        _say(f"  {key:32} {value}")
    _say(f"  {'group_segment_fixed_size':32} {info.lds_bytes}")
    _say(f"  {'kernarg_segment_size':32} {info.kernarg_bytes}")


def _cost(code: CodeObject, kernel: str) -> None:
    _resources(code, kernel)
    instructions = parse(code.assembly(kernel), kernel).instructions
    mix: Counter[str] = Counter()
    issue: Counter[str] = Counter()
    for ins in instructions:
        _place(ins)
        mix[ins.family] += 1
        issue[ins.family] += clocks(ins)
    _say(f"  {'instructions':32} {len(instructions)}")
    for name, count in mix.most_common():
        _say(f"    {name:30} {count:7}" + (f"  {issue[name]} issue clocks if each ran once" if issue[name] else ""))


def _place(ins: Instruction) -> None:
    ins.family = family(ins.op)


def _run(code: CodeObject, kernel: str | None, options: argparse.Namespace) -> None:
    launch = read(options.args)
    name = code.name(kernel or launch.kernel)
    _resources(code, name)
    dev = device(code.arch, checks=options.checks, schedule=options.schedule, triton=False)
    dev.uninitialised(*launch.uninitialised)
    stats = dev.launch(code, name, launch.grid, launch.block, launch.args, launch.lds)
    for key, value in stats.summary().items():
        _say(f"  {key:32} {value}")
    for array, path in launch.outputs:
        np.save(path, array)
        _say(f"  saved {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or 1 with the reason on standard error."""
    options = _parser().parse_args(arguments)
    try:
        code = CodeObject(options.file.read_bytes())
        if options.command == "run":
            _run(code, options.kernel, options)
        elif options.command == "disasm":
            _say(code.assembly(code.name(options.kernel)))
        else:
            for kernel in [code.name(options.kernel)] if options.kernel else list(code.kernels):
                _cost(code, kernel)
    except (EmulationError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
