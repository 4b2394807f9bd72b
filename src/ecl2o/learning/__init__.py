"""The ML optimizer and how it is trained: losses, fitting, policy files, the streaming runner."""
