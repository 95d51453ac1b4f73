"""Ranks: how they start, meet, exchange rows and fail."""
