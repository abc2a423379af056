"""Break every command that changes something: ``make faults``; see ``docs/evidence/faults.md``."""
