"""The layer inside the user's running JAX: checked reads, whole writes, a bound, tiers.

Everything here runs in the user's process, beside code that knows nothing of it. It imports the
standard library and jax, zstandard where JAX has it, obstore where a tier is a bucket and
cryptography where signatures are asked for; of the rest of jaxcache ``core`` alone. Python 3.10
syntax. Nothing here raises into the user's program.
"""
