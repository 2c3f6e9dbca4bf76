"""Schedules: what machine, which tiles, where values live, in what order, how parallel, and why."""

from aicf.schedule.cost import choose, estimate, estimate_unfused, predict
from aicf.schedule.problem import Problem, kv_major_bytes, q_major_bytes
from aicf.schedule.schedule import VALUES, Schedule, ScheduleError, check, decisions, partial
from aicf.schedule.target import TARGETS, CpuTarget, GpuTarget, Target, describe, host_target, named_target

__all__ = [
    "TARGETS",
    "VALUES",
    "CpuTarget",
    "GpuTarget",
    "Problem",
    "Schedule",
    "ScheduleError",
    "Target",
    "check",
    "choose",
    "decisions",
    "describe",
    "estimate",
    "estimate_unfused",
    "host_target",
    "kv_major_bytes",
    "named_target",
    "partial",
    "predict",
    "q_major_bytes",
]
