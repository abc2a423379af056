"""Recipes: every compile request of a run, in one file that compiles without the script.

:mod:`.model` is the content of a recipe and its JSON, :mod:`.format` the file. docs/recipe.md
describes both.
"""
