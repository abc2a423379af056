"""From results to what a person reads: views, tables, notes, pages."""
