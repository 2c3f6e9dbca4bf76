"""Measurements: what `aicf bench` times, and how `aicf tune` searches for schedules."""
