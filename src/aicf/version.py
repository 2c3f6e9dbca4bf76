"""The version of this package, in one place: the packaging reads it here, and so do the command line and reports."""

VERSION = "0.1.0"
