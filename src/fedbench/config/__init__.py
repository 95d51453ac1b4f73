"""From words to checked settings."""
