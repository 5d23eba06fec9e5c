"""Learning rules, one file each."""
