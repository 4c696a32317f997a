"""Sphinx: the pages of this folder as a site, `./run docs`."""

import sys
from pathlib import Path

import sysdyn

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "sysdyn"
author = copyright = "sysdyn contributors"
release = version = sysdyn.__version__
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_gallery.gen_gallery",
    "docstrings", "mathml",
]  # fmt: skip
exclude_patterns = ["_build", "_extensions", "gallery"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
# The scripts of `gallery` become the pages of `examples`, each run, with a picture and a notebook.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
}
# Links of the pages lead to files of the repository, too, which are no pages.
suppress_warnings = ["myst.xref_missing"]
myst_heading_anchors = 3
# Formulas are blocks of `math`, which other viewers of Markdown typeset, too.
myst_fence_as_directive = ["math"]
html_math_renderer = "mathml"
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
