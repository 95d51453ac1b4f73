"""What there is to do in a study, and doing it."""
