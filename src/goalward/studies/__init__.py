"""Studies: declared matrices of runs, and what conducts them."""
