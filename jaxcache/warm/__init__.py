"""The parent's side of every child process: run programs, and report what they compiled."""
