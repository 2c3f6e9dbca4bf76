"""What is read off single nodes of an FX graph: sizes and types, names, and source lines."""
