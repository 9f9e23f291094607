"""The command line: parse, call, print. Nothing here imports torch until a verb runs, so `--help` answers at once."""
