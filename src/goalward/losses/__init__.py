"""Mathematics on arrays: no networks, no settings, no environment."""
