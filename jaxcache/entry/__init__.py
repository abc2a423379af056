"""What one file of JAX's cache means: its name, its frame, its header and its executable."""
