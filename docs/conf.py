"""Sphinx: the pages of this folder as a site, `./run docs`."""

import sys
from pathlib import Path

import sysdyn

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "sysdyn"
author = copyright = "sysdyn contributors"
release = version = sysdyn.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx_copybutton", "docstrings"]
exclude_patterns = ["_build", "_extensions"]
source_suffix = {".md": "markdown"}
# Links of the pages lead to files of the repository, too, which are no pages.
suppress_warnings = ["myst.xref_missing"]
myst_heading_anchors = 3
smartquotes = False  # in messages and names of arguments quotes are what is typed
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # what a class inherits is described where it is from
add_module_names = False
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["output.css"]
html_title = f"sysdyn {release}"
html_copy_source = False
