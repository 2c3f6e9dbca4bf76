"""From the ATen graph to a Semantic graph."""
