"""Acceptance probabilities counted while running. Pure.

A proposer's own belief (a softmax, the length of a match) says which candidates are alike; how often such ones are the
target's choice is counted. A bucket of alike candidates starts from a prior worth a few trials, and old trials fade, so
that the estimate follows the text.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from draftwing.engine.tree import Tree

# The prior stands for so many trials at first, and for LASTING of them when the others have faded: enough for a bucket
# that was never right to be tried again now and then, too little to make it seem worth much.
PRIOR_TRIALS, LASTING = 8.0, 1.0
# A trial of 200 trials ago counts a third.
FADE = 1 - 1 / 200


@dataclass
class Bucket:
    """Faded counts, which make the estimate, and whole ones with the sum of estimates, which are reported."""

    prior: float
    hits: float = field(init=False)
    trials: float = PRIOR_TRIALS - LASTING
    all_hits: int = 0
    all_trials: int = 0
    all_estimated: float = 0.0

    def __post_init__(self) -> None:
        self.hits = self.trials * self.prior

    @property
    def chance(self) -> float:
        """The estimate: trials so far, the prior among them."""
        return (self.hits + LASTING * self.prior) / (self.trials + LASTING)

    def count(self, hit: bool) -> None:
        """One trial."""
        self.all_estimated += self.chance
        self.all_hits += hit
        self.all_trials += 1
        self.hits = FADE * self.hits + hit
        self.trials = FADE * self.trials + 1


@dataclass
class Calibration:
    """Buckets of all proposers. A bucket is known by its proposer's name and what the proposer calls it."""

    buckets: dict[tuple[str, Hashable], Bucket] = field(default_factory=dict)

    def chance(self, proposer: str, bucket: Hashable, prior: float) -> float:
        """The estimate for a candidate of this bucket; `prior` is what is believed before the first trial."""
        counted = self.buckets.get((proposer, bucket))
        if counted is None:
            counted = self.buckets[proposer, bucket] = Bucket(prior)
        return counted.chance

    def learn(self, tree: Tree, chosen: list[int]) -> None:
        """Count the trials of a verified tree: every child of an accepted node was tried, and one at most was right."""
        path = set(tree.accepted(chosen))
        for node in tree.nodes[1:]:
            if node.parent not in path:
                continue
            for key in node.proposers:
                if key in self.buckets:
                    self.buckets[key].count(node.token == chosen[node.parent])

    def table(self) -> list[dict[str, object]]:
        """Estimated against observed, bucket by bucket, the most tried first."""
        tried = [(key, bucket) for key, bucket in self.buckets.items() if bucket.all_trials]
        return [
            {
                "proposer": proposer,
                "bucket": str(name),
                "trials": bucket.all_trials,
                "estimated": bucket.all_estimated / bucket.all_trials,
                "observed": bucket.all_hits / bucket.all_trials,
            }
            for (proposer, name), bucket in sorted(tried, key=lambda pair: -pair[1].all_trials)
        ]
