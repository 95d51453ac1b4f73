"""A run is a folder of plain files: its name, its writer, its checkpoints."""
