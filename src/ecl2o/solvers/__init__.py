"""Numerics without a domain: block-tridiagonal and small definite systems, bounded Newton, bisection, projection, ridge."""
