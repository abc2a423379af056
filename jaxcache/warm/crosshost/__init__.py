"""Hosts that are not here: what their keys depend on, and the entries that are made for them."""
