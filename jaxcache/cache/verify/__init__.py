"""What is wrong in a cache, and what is done about it."""
