"""The child processes: which Python they run, how they start, answer and end."""
