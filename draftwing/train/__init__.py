"""The drafter's training: align, dataset, attention, unroll, loss, walk, loop."""
