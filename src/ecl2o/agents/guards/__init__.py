"""What promises: wrappers that let an agent act only as far as a bound on the bill allows, whatever the agent proposes."""
