"""Figures and the HTML report.

Knows what studies find; computes nothing that a study could.
"""
