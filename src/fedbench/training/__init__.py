"""The round loop and the client loop, and what they measure."""
