"""Draftwing: train, check, run and measure EAGLE-3 drafters. The rooms are drawn in docs/structure.md."""

__version__ = "0.1.0"
