"""Run something in order to learn a number."""
