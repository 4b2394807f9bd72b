"""The seed paper's studies: demand response, right-sizing, sweeps, generalisation, their figures and report.

Only cli/ imports this package.
"""
