"""The tasks of JaxGCRL, rebuilt on Brax: the suite's own package cannot be installed beside a current JAX."""
