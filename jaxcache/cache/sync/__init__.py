"""``push`` and ``pull``: bring to one cache what it lacks of another, over any two stores.

``plan`` compares two listings and reads no entry; ``execute`` carries each entry over after it has
been checked whole. What is there is never replaced, so that a second run does the
rest of an interrupted one, and two at once end up with what each of them had.
"""
