"""Identification from logs: inertial parameters of bodies and covariances of measurements."""
