"""What torch compiles in a child: its runs, their report, and why a graph was no hit."""
