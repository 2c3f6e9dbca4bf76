"""The documentation, and what keeps it true: `./dev docs` brings it up to date, `tests/docs` checks it."""
