"""Networks, policy heads and observation statistics."""
