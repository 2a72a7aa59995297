"""Parts that several modifications use."""
