"""Draw a cycle's tree, who proposed what in it, and what the target took, as an SVG picture.

    python recipes/draw_tree.py --out docs/tree.svg

Answers a prompt with trees of a given shape and draws the cycle that says most: many accepted, of several proposers.
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text
from rich.tree import Tree as Branches

from draftwing.cli import parts
from draftwing.engine.request import Request
from draftwing.engine.tree import Tree
from draftwing.target.tokenizer import Tokenizer

QUESTION = "Write a Python function that counts the vowels in a text, and explain it."


def main() -> None:
    """Decode and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", default=QUESTION)
    parser.add_argument("--tree", default="12:3:4")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    parts.set_threads(0)
    loaded = parts.open_target("default", "float32", "cpu", None)
    drafter = parts.open_drafter("default", loaded, None)
    engine = parts.make_engine(loaded, drafter, parts.Speculation(options.tree), None)
    cycles: list[tuple[Tree, list[int]]] = []
    engine.watch = lambda tree, chosen: cycles.append((tree, chosen))
    prompt = loaded.tokenizer.prompt([{"role": "user", "content": options.prompt}])
    engine.generate(Request(tuple(prompt), 200))
    tree, chosen = max(cycles, key=_says)
    console = Console(record=True, width=76, file=io.StringIO())
    console.print(_drawn(tree, chosen, loaded.tokenizer))
    picture = console.export_svg(title="one cycle: a tree of two proposers, verified at once")
    # The fonts that rich would fetch from afar; every system has one of a fixed width.
    options.out.write_text(re.sub(r"@font-face {.*?}", "", picture, flags=re.DOTALL))


def _says(cycle: tuple[Tree, list[int]]) -> tuple[int, int]:
    """How much there is to see: the proposers of accepted nodes, then how many were accepted."""
    tree, chosen = cycle
    path = tree.accepted(chosen)
    return len({tree.nodes[row].proposers and tree.nodes[row].proposers[0][0] for row in path}), len(path)


def _drawn(tree: Tree, chosen: list[int], tokenizer: Tokenizer) -> Branches:
    path = set(tree.accepted(chosen))
    branches: list[Branches] = []
    for row, node in enumerate(tree.nodes):
        label = Text(repr(tokenizer.decode([node.token])), style="bold green" if row in path else "dim")
        if row:
            names = "+".join(name for name, _ in node.proposers)
            label.append(f"  {names}, {100 * node.reach:.0f} %", style="dim")
        if row in path:
            label.append("  taken" if row else "  the current token", style="green")
        branches.append(branches[node.parent].add(label) if row else Branches(label))
        if row == max(path):
            bonus = Text(repr(tokenizer.decode([chosen[row]])), style="bold magenta")
            branches[row].add(bonus.append("  the target's own", style="magenta"))
    return branches[0]


if __name__ == "__main__":
    main()
