"""Diagnosis of ill-posed problems: undetermined unknowns, redundant equations and remedies, by name."""
