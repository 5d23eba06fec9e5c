"""A run from its settings to its directory; the top of the package."""
