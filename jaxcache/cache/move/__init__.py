"""One mover: entries travel from a store or a bundle into another, each checked once."""
