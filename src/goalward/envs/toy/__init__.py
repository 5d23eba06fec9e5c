"""Built-in tasks in pure JAX: one for each kind of problem, solvable on a CPU."""
