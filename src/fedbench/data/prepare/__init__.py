"""`fedbench-data`: from original files to arrays."""
