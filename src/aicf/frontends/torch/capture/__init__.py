"""From Dynamo's module to one flat ATen graph."""
