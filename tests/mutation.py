"""Mutation testing: small changes of a source file, drawn at random, and whether its tests notice them.

    python tests/mutation.py sysdyn/offline/check.py tests/offline/test_check.py [--count 20] [--seed 0] [-- -k NAME]

Works in a copy of the tree, whose tests pass first. One change at a time: a comparison, an operator, `and` for `or`,
`min` for `max`, a `not`, a sign, a transposition or a condition less, a transposed matrix for an inverse one, a number
that is one more or a hundredth. Prints a line for each change, and the survivors with their lines; some of these change
nothing that can be seen (equivalent mutants).
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What is exchanged for each other.
OPERATORS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
# A mutant whose tests take so many times as long as those of the original, and 30 s more, counts as noticed.
PATIENCE = 5.0


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """Replacements of a node, each a copy."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[op, *_]) if type(op) in OPERATORS:
            other.ops[0] = OPERATORS[type(op)]()
            yield other
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            other.op = OPERATORS[type(op)]()
            yield other
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield other.operand
        case ast.IfExp() | ast.If():
            other.test = ast.UnaryOp(op=ast.Not(), operand=other.test)
            yield other
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(id=NAMES[name], ctx=other.ctx)
        case ast.Attribute(attr="T"):
            yield other.value
        case ast.Call(func=ast.Name(id="X_inverse"), args=[x]):
            yield ast.Attribute(value=x, attr="T", ctx=ast.Load())
        case ast.Attribute(attr=name) if name in NAMES:
            other.attr = NAMES[name]
            yield other
        case ast.Constant(value=bool(x)):
            yield ast.Constant(value=not x)
        case ast.Constant(value=int(x)):
            yield ast.Constant(value=x + 1)
        case ast.Constant(value=float(x)):
            yield ast.Constant(value=0.01 * x if x else 1.0)


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, words, source) of each mutant; annotations, texts, assertions, module constants and `strict=` stay."""
    tree = ast.parse(text)
    functions = [x for x in ast.walk(tree) if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef))]
    seen: set[int] = set()
    for function in functions:
        inside = [x for statement in function.body for x in ast.walk(statement)]
        hidden = {id(y) for x in inside if isinstance(x, ast.arg | ast.AnnAssign) and x.annotation
                  for y in ast.walk(x.annotation)}  # fmt: skip
        hidden |= {id(y) for x in inside if isinstance(x, ast.Raise | ast.Assert | ast.JoinedStr) for y in ast.walk(x)}
        hidden |= {id(x.value) for x in inside if isinstance(x, ast.keyword) and x.arg == "strict"}
        for node in inside:
            if id(node) in seen | hidden:
                continue
            seen.add(id(node))
            for other in changed(node):
                yield node.lineno, f"{_words(node)}  →  {_words(other)}", _replaced(text, node, other)


def _words(node: ast.AST) -> str:
    return ast.unparse(node.test if isinstance(node, ast.If) else node).replace("\n", " ")[:100]


def _replaced(text: str, node: ast.AST, other: ast.AST) -> str:
    """The source with the node replaced, on its lines (positions count in bytes)."""
    if isinstance(node, ast.If):  # its condition alone
        node, other = node.test, other.test
    lines = text.encode().splitlines(keepends=True)
    begin, end = node.lineno - 1, node.end_lineno - 1
    new = ast.unparse(other) if isinstance(other, ast.stmt) else f"({ast.unparse(other)})"
    if isinstance(other, ast.Attribute | ast.Name):
        new = ast.unparse(other)
    first, last = lines[begin][: node.col_offset], lines[end][node.end_col_offset :]
    return b"".join([*lines[:begin], first + new.encode() + last, *lines[end + 1 :]]).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="of the package, from the root of the tree")
    parser.add_argument("tests", nargs="+", help="files of tests")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = sys.argv[1:]
    own = given.index("--") if "--" in given else len(given)
    options, passed = parser.parse_args(given[:own]), given[own + 1 :]
    source = (ROOT / options.file).read_text(encoding="utf-8")
    drawn = list(mutants(source))
    total = len(drawn)
    drawn = sorted(random.Random(options.seed).sample(drawn, min(options.count, total)), key=lambda x: x[0])
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", "results", "site")
        shutil.copytree(ROOT, tree, ignore=left_out)

        def passes(limit: float | None) -> bool:
            pytest = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-p", "no:cacheprovider"]
            command = [*pytest, *options.tests, *passed]
            environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
            environment.pop("SYSDYN_TEST_CACHE", None)
            try:
                run = subprocess.run(
                    command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit, check=False
                )
            except subprocess.TimeoutExpired:
                return False
            if limit is None and run.returncode:
                raise SystemExit(f"the tests fail without any change:\n{run.stdout[-2000:]}")
            return run.returncode == 0

        began = time.monotonic()
        passes(None)
        limit = PATIENCE * (time.monotonic() - began) + 30.0
        survivors = []
        for line, words, text in drawn:
            (tree / options.file).write_text(text, encoding="utf-8")
            survived = passes(limit)
            survivors += [(line, words)] if survived else []
            print(f"{'SURVIVED' if survived else 'killed':<9}{options.file}:{line}  {words}", flush=True)
    killed = len(drawn) - len(survivors)
    print(f"{options.file}: {killed} of {len(drawn)} killed (drawn from {total}, seed {options.seed})")


if __name__ == "__main__":
    main()
