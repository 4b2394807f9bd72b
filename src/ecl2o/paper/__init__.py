"""Complete case studies built from the parts.

Knows everything but figures and the command line.
"""
