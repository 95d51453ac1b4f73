"""Experiment files: what a study is, as its file says, checked before anything runs."""
