"""A. Jain, Graph theoretic foundations of multibody dynamics, parts I and II: spatial operators and SKO models."""

from __future__ import annotations

from sysdyn.papers.jain.sko import SKOModel, task_frames

__all__ = ["SKOModel", "task_frames"]
