"""Forces."""


def force(position, stiffness):
    """Return the force of a spring."""
    return -stiffness * position
