"""What runs when the compiled graph is called: the region op, and Inductor for the rest."""
