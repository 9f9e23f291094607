"""Training prompts of the default drafter: ShareGPT's first turns in file order, and Python functions to complete.

The functions are signatures with docstrings from installed, pinned packages (numpy, scipy, sympy, networkx, mpmath).
They are asked for in the words that `--prompts humaneval` uses, and no problem of HumanEval is among them. One of them
stands after every SHAREGPT_TO_ONE prompts of ShareGPT, so that any first part of the file has the same mixture.

    python recipes/prompts.py runs/prompts.jsonl
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

from draftwing.capture.prompts import completion, read_prompts
from draftwing.formats.files import whole_file

PACKAGES = ("numpy", "scipy", "sympy", "networkx", "mpmath")
SHAREGPT_TO_ONE = 4
LONGEST_DOCSTRING = 900


def main(out: Path) -> None:
    sharegpt = read_prompts("sharegpt", "train")
    functions = sorted({text for name in PACKAGES for text in _functions(name)}, key=_digest)
    with whole_file(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        for number, prompt in enumerate(sharegpt, 1):
            _write(file, list(prompt.messages))
            if number % SHAREGPT_TO_ONE == 0 and (place := number // SHAREGPT_TO_ONE - 1) < len(functions):
                _write(file, [{"role": "user", "content": completion(functions[place])}])
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"{len(sharegpt)} prompts of ShareGPT, {len(functions)} functions of {versions}")


def _functions(package: str) -> Iterator[str]:
    """Signature and docstring of every public function and method that does more than one thing."""
    spec = importlib.util.find_spec(package)
    assert spec and spec.origin
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "tests" in path.parts:
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
        lines = source.splitlines()
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or len(node.body) < 2:
                continue
            docstring = ast.get_docstring(node)
            if docstring and len(docstring) <= LONGEST_DOCSTRING:
                end = node.body[0].end_lineno
                yield textwrap.dedent("\n".join(lines[node.lineno - 1 : end]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(file: object, messages: list[dict[str, str]]) -> None:
    print(json.dumps({"messages": messages}, ensure_ascii=False), file=file)  # type: ignore[call-overload]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
