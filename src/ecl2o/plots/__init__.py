"""Figures of one's own series, policies and fleets, the look that all figures share, and report folders."""
