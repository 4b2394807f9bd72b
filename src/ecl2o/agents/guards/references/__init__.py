"""References: whose cost a promise multiplies. One file each; a new one implements `AbstractReference`."""
