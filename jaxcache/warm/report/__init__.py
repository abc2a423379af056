"""From the events of a run to its report, its recipe, and what the ledger learns."""
