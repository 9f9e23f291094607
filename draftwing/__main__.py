"""`python -m draftwing`, the same as the command."""

from draftwing.cli.main import main

main()
