"""Statistics."""


def center(x):
    """Subtract the mean."""
    return x - x.mean()
