"""What a stretch of known contexts costs: the cheapest path through it, and what it leaves of the past and asks of the future.

Oracles, planners and guards stand on this room. It knows problems and theorems, never who decides.
"""
