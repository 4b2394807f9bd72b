"""The cheapest path through known contexts, plans over a window, and work functions: for oracles, planners and guards."""
