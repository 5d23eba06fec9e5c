"""`python -m goalward` is the `goalward` command."""

from goalward.cli import entry

entry()
