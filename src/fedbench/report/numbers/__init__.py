"""The runs of a study as one table, with everything that is measured of them."""
