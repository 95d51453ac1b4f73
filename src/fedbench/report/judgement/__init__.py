"""What the numbers say: to a published number, and to a claim."""
