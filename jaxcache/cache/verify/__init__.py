"""Find damage in a cache, and repair it."""
