"""Lossless decoding. `step` shows the whole of it: draft, verify, commit, emit."""
