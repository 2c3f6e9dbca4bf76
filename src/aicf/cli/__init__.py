"""The command line: `aicf explain`, `aicf dump`, `aicf targets`, `aicf bench`, `aicf tune`.

`main` parses and turns errors into words; each command is a module of its name, loaded when it is asked for, so that
`aicf --help` and `aicf targets` do not wait for PyTorch.
"""
