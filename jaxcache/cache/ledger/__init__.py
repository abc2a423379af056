"""The ledger: knowledge about entries beyond their files."""
