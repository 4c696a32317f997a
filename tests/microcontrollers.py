"""Boards with a microcontroller, emulated: C and objects are linked with newlib, run, and print by the emulator."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from sysdyn.program.program import Program

COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
needs_board = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason="no gcc-arm-none-eabi with libnewlib-arm-none-eabi, or no qemu-system-arm",
)


class Board(NamedTuple):
    """A machine of the emulator. clock [Hz]: of its processor, as the emulator has it."""

    machine: str
    unit: str
    clock: float = 25e6


BOARDS = {"cortex-m4": Board("mps2-an386", "fpv4-sp-d16"), "cortex-m7": Board("mps2-an500", "fpv5-d16")}
# Instructions a second of the emulator's clock with -icount shift=0.
RATE = 1e9

_START = """
#include <stdint.h>
extern uint32_t __stack;
extern void _start(void);
void reset(void);
__attribute__((section(".vectors"), used)) static void *const vectors[2] = {&__stack, (void *)reset};
void reset(void)
{
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* coprocessors 10 and 11: the floating-point unit */
    __asm__ volatile("dsb\\n isb");
    _start();
}
"""
_MEMORY = """
MEMORY { code (rx) : ORIGIN = 0x00000000, LENGTH = 4M
         data (rw) : ORIGIN = 0x20000000, LENGTH = 4M }
ENTRY(reset)
SECTIONS {
    .text : { KEEP(*(.vectors)) *(.text*) KEEP(*(.init)) KEEP(*(.fini)) *(.rodata*) . = ALIGN(8);
              *(.init_array*) *(.fini_array*) } > code
    .ARM.exidx : { __exidx_start = .; *(.ARM.exidx*) __exidx_end = .; } > code
    .data : { *(.data*) } > data
    .bss : { __bss_start__ = .; *(.bss* COMMON) . = ALIGN(8); __bss_end__ = .; end = .; __end__ = .; } > data
    __stack = ORIGIN(data) + LENGTH(data);
}
"""
# Prints the status and the bits of the results of each state, and the instructions of a call.
_BITS = """
#include <stdint.h>
#include <stdio.h>
#include "{name}.h"
#include "states.h"

#define TIMER(k) (*(volatile uint32_t *)(0xE000E010 + 4 * (k)))

static {name}_outputs out;
static {name}_work work;

int main(void)
{{
#ifdef __arm__
    uint32_t before, after;
#endif
    int k, n;
    for (k = 0; k < STATES; ++k) {{
        const int status = {name}_run(&states[k], &out, &work);
        const uint32_t *bits = (const uint32_t *)&out;
        printf("%d", status);
        for (n = 0; n < (int)(sizeof out / sizeof *bits); ++n) {{
            printf(" %08lx", (unsigned long)bits[n]);
        }}
        printf("\\n");
    }}
#ifdef __arm__
    TIMER(1) = 0xFFFFFF;
    TIMER(2) = 0;
    TIMER(0) = 5;
    before = TIMER(2);
    for (k = 0; k < CALLS; ++k) {{
        {name}_run(&states[0], &out, &work);
    }}
    after = TIMER(2);
    printf("%lu\\n", (unsigned long)((before - after) & 0xFFFFFF));
#endif
    return 0;
}}
"""
# Calls that are timed, so that ticks of the timer are a small part of one.
CALLS = 400


def run(folder: Path, target: str, sources: Sequence[str], *flags: str) -> str:
    """What a program of these files prints on the board of a target; it must succeed."""
    board = BOARDS[target]
    (folder / "start.c").write_text(_START)
    (folder / "board.ld").write_text(_MEMORY)
    options = ["-O2", "-std=c99", "-Wall", "-Wextra", *flags, "--specs=rdimon.specs", "-T", "board.ld"]
    command = [COMPILER, *_machine(target), *options, "start.c", *sources, "-o", "board.elf", "-lm"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    emulator = f"{EMULATOR} -machine {board.machine} -icount shift=0 -nographic -monitor none -serial none".split()
    emulator += ["-semihosting-config", "enable=on,target=native", "-kernel", "board.elf"]
    done = subprocess.run(emulator, cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_double(source: Path, target: str) -> list[str]:
    """Instructions of a file of C for a target that compute in double, and calls of functions that do."""
    command = [COMPILER, *_machine(target), "-O2", "-std=c99", "-S", source.name, "-o", "-"]
    text = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=True, timeout=120).stdout
    return re.findall(r"v\w+(?:\.\w+)*\.f64\b.*|__aeabi_\w*d\w*|\bbl?\s+(?:sqrt|fabs|exp|expm1|sin|cos)\b", text)


def _machine(target: str) -> list[str]:
    return f"-mthumb -mcpu={target} -mfloat-abi=hard -mfpu={BOARDS[target].unit}".split()


def write_states(folder: Path, name: str, program: Program, inputs: Mapping[str, np.ndarray]) -> None:
    """Write bits.c, which prints the bits of NAME_run at these states, by group (n, …), and how long a call takes."""
    n = len(next(iter(inputs.values())))
    rows = np.hstack([np.reshape(inputs[group], (n, -1)) for group, size in program.input_groups if size])
    suffix = "f" if rows.dtype == np.float32 else ""
    text = ",\n".join("{" + ", ".join(f"{literal(x)}{suffix}" for x in row) + "}" for row in rows.tolist())
    (folder / "states.h").write_text(
        f"#include <math.h>\n#define STATES {n}\n#define CALLS {CALLS}\n"
        f"static const {name}_inputs states[STATES] = {{\n{text}}};\n"
    )
    (folder / "bits.c").write_text(_BITS.format(name=name))


def bits(printed: str) -> tuple[np.ndarray, np.ndarray]:
    """(status (n,), words of the results (n, …)) that bits.c has printed."""
    lines = [line.split() for line in printed.splitlines() if " " in line]
    return np.array([int(x[0]) for x in lines]), np.array([[int(y, 16) for y in x[1:]] for x in lines], dtype=np.uint32)


def instructions(printed: str, target: str) -> float:
    """Instructions of a call on the board, as bits.c has timed them."""
    return float(printed.splitlines()[-1]) * RATE / BOARDS[target].clock / CALLS


def literal(x: float) -> str:
    """A number as a constant of C99, to the last bit, without its suffix."""
    return float(x).hex() if np.isfinite(x) else "(float)NAN + 0." if np.isnan(x) else "1e999"
