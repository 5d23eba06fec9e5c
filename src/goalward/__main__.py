"""`python -m goalward` is the `goalward` command."""

from goalward.cli import main

main()
