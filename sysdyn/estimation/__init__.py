"""Whole trajectories from raw logs: processes in time, chains of instants, filters, smoothers and their runs."""
