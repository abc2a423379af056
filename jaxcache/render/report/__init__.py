"""The report of a cache: one HTML file that needs nothing else."""
