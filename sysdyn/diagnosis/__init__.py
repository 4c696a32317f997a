"""Well-posedness of a problem, in names, and remedies if it is ill posed."""
