"""The ATen graph with each streamed region replaced by one call."""
