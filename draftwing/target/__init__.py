"""The frozen target: fetched, loaded, run, with every boundary open to a tap."""
