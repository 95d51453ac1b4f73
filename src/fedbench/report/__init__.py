"""Studies: the tables and figures of conf/experiment, from sweeps to a report."""
