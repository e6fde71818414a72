"""Sphinx configuration of the documentation: ``make docs`` builds it into build/docs, warnings being errors."""

from __future__ import annotations

import slurm_hadar

project = "slurm_hadar"
author = "The slurm_hadar developers"
copyright = author  # noqa: A001 - Sphinx's own name
version = release = slurm_hadar.__version__

extensions = ["myst_parser", "sphinx_click"]
# Anchors that a Git host gives to headings: page.md#some-heading works in both.
myst_heading_anchors = 4
# Code of formats that Pygments does not know, and output of commands, is shown as it is.
highlight_language = "text"

html_theme = "furo"
html_title = f"slurm_hadar {release}"
# Nothing is fetched from elsewhere: head nodes are often offline.
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
